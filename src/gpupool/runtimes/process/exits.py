"""Waiting for a process to end, be it our child or an adopted one, without a thread and without polling."""

import asyncio
import os
from typing import Self

from gpupool.core.processes import ProcessIdentity
from gpupool.runtimes.process.table import identity_of


class ExitWatch:
    """Tells when one process has ended, through its pidfd. Use as a context manager inside a running loop."""

    def __init__(self, process: ProcessIdentity) -> None:
        self._gone = asyncio.Event()
        self._descriptor: int | None = None
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            self._gone.set()
            return
        if identity_of(process.pid) != process:
            os.close(descriptor)
            self._gone.set()
            return
        self._descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def wait(self) -> None:
        """Return once the process has ended."""
        await self._gone.wait()

    def close(self) -> None:
        """Stop watching; safe to repeat."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _ended(self) -> None:
        self._gone.set()
        self.close()
