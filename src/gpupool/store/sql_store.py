"""The store itself: views on reading connections, and writers one after another on the writing one.

Writers of this process queue up in order; how they queue with those of other processes is the database's. Commit and
rollback run to their end even when the task that wanted them is cancelled meanwhile, so that a transaction is never
left open.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from gpupool.core.errors import StorageError
from gpupool.core.finishing import to_its_end
from gpupool.core.sealing import Seal
from gpupool.store.database import Database
from gpupool.store.faults import translated
from gpupool.store.sealed_env import Sealing
from gpupool.store.sql_reader import SqlReader
from gpupool.store.sql_writer import SqlWriter


class SqlStore:
    """`fleet.ports.store.Store` over a migrated database; see `store.open.open_store`."""

    def __init__(
        self,
        database: Database,
        *,
        seal: Seal | None = None,
    ) -> None:
        self._sealing = Sealing(seal)
        self._database = database
        self._turn = asyncio.Lock()
        self._owner: asyncio.Task[Any] | None = None
        self._closed = False
        self._views = 0
        self._no_view = asyncio.Event()
        self._no_view.set()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[SqlReader]:
        """Open a consistent view: what is committed when it first reads, until its block ends."""
        self._check_open()
        self._views += 1
        self._no_view.clear()
        try:
            with translated():
                connection = await self._database.readers.connect()
            try:
                with translated():
                    await connection.begin()
                yield SqlReader(connection, self._sealing)
            finally:
                await to_its_end(_give_back(connection))
        finally:
            self._views -= 1
            if not self._views:
                self._no_view.set()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[SqlWriter]:
        """Open a transaction: it commits when the block ends, and leaves nothing behind when the block raises.

        A task that is cancelled during the commit itself may find its changes kept. RuntimeError where a task
        opens a second one inside its first, since it would wait for itself.
        """
        self._check_open()
        if self._owner is not None and self._owner is asyncio.current_task():
            raise RuntimeError("this task is inside a write transaction already")
        async with self._turn:
            self._check_open()
            self._owner = asyncio.current_task()
            try:
                with translated():
                    connection = await self._database.writers.connect()
                try:
                    await self._database.begin_writing(connection)
                    writer = SqlWriter(connection, self._sealing)
                    yield writer
                    writer.check_unbroken()
                    with translated():
                        await to_its_end(connection.commit())
                finally:
                    await to_its_end(_give_back(connection))
            finally:
                self._owner = None

    async def seal_clear(self) -> int:
        """Seal what an earlier version has kept in clear, and let nothing of it stay behind; return how many it were."""
        async with self.read() as view:
            clear = await view.clear_workloads()
        if clear:
            async with self.write() as writer:
                for workload_id in clear:
                    workload = await writer.workload(workload_id)
                    if workload is not None:
                        await writer.put_workload(workload)
            await self._database.forget_overwritten()
        return len(clear)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("The store is closed.", remedy="Start the process again.")

    async def close(self) -> None:
        """Take nothing new, wait for who is at work, then give back every connection; safe to repeat."""
        self._closed = True
        async with self._turn:
            await self._no_view.wait()
            with translated():
                await self._database.readers.dispose()
                await self._database.writers.dispose()


async def _give_back(connection: AsyncConnection) -> None:
    """Roll back what is still open and return the connection to its pool."""
    with translated():
        await connection.close()
