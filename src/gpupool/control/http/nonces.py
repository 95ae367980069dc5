"""Signed requests that another control has taken already: a nonce is good once, at whichever control it comes first.

Each control remembers its own nonces in memory (`control.http.signatures`); this is what they tell each other, in the
database. Ten thousand agents send some hundred requests a second, so everything that comes while one statement is on
its way goes into the next one.
"""

import asyncio
from dataclasses import dataclass

from gpupool.core.errors import GpupoolError, StorageError, UnauthorizedError
from gpupool.fleet.ports.sharing import Sharing


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    nonce: tuple[str, str, int]
    new: asyncio.Future[bool]


class Nonces:
    """The nonces that all controls on one database have taken."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._waiting: list[_Asked] = []
        self._work: asyncio.Task[None] | None = None

    async def admit(self, node_id: str, nonce: str, stamp: int, *, harmless: bool) -> None:
        """Take a nonce; UnauthorizedError where any control has taken it before.

        While the database cannot be asked, a ``harmless`` request passes, and any other raises StorageError. Harmless
        is a report: taken twice it changes nothing, and a fleet should not lose its links over a moment's outage.
        """
        asked = _Asked((node_id, nonce, stamp), asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._ask_all(), name="nonces")
        try:
            new = await asked.new
        except StorageError:
            if not harmless:
                raise
            return
        if not new:
            raise UnauthorizedError(
                "The request was sent before (another control has taken its nonce).",
                remedy="Nothing is to be done where an agent sent it: it signs each request anew.",
            )

    async def _ask_all(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                new = await self._sharing.admit({one.nonce for one in asked})
            except GpupoolError as error:
                for one in asked:
                    if not one.new.done():
                        one.new.set_exception(error)
            else:
                for one in asked:
                    if not one.new.done():
                        one.new.set_result(one.nonce in new)
