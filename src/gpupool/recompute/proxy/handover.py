"""The running proxy's side of a takeover: it lends its listening socket, and leaves once the successor serves.

    successor                       running proxy
    connects               ───►     {"listener": 1} with the socket
    looks at its nodes     ───►     {"ready"}        shuts its door: who connects now waits in the kernel's queue
    opens its door         ◄───     {"yours"}
    serves                 ───►     {"serving"}
                           ◄───     {"leaving"}      then {"client": "http"} with a connection, for each between two
                                                     requests, until none is left

Whoever dies on the way leaves the other one serving: the running proxy opens its door again when the successor ends
without having said that it stops, at any point until it has left itself; a successor that has the socket needs
nobody any more.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Final

import structlog

import gpupool
from gpupool.core.errors import GpupoolError
from gpupool.core.files import ensure_private_dir
from gpupool.core.home import Home
from gpupool.recompute.addresses import Address
from gpupool.recompute.proxy.channels import AVAILABLE, Channel, listen_at
from gpupool.recompute.proxy.door import Door
from gpupool.recompute.proxy.framing import Speech
from gpupool.recompute.proxy.heirs import descriptor_of
from gpupool.recompute.proxy.proxying import ProxyCore

READY_SECONDS: Final = 30.0
"""How long a successor may look at its nodes."""
log = structlog.get_logger(__name__)


def handover_path(address: Address) -> Path:
    """Return where the proxy that listens on ``address`` can be asked for its socket."""
    host, port = address
    plain = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in host)
    return Home.from_environment().run / f"proxy-{plain}-{port}.sock"


class Handover:
    """Waits at a path for a successor; one at a time."""

    def __init__(self, door: Door, path: Path) -> None:
        self._door = door
        self._path = path
        self._listener: socket.socket | None = None
        self._inode = 0

    def begin(self) -> None:
        """Be there for a successor; where that can't be, say why once and serve without."""
        if not AVAILABLE:
            return
        try:
            ensure_private_dir(self._path.parent)
            self._listener = listen_at(self._path)
            self._inode = self._path.stat().st_ino
        except (GpupoolError, OSError) as error:
            why = error.message if isinstance(error, GpupoolError) else str(error)
            log.warning(
                "no_takeover_possible",
                why=why,
                remedy="Name a folder that this user may write with GPUPOOL_HOME; until then a restart has a gap.",
            )

    async def successor(self) -> Channel:
        """Return the connection to a successor once it serves in our place; our door is shut then."""
        while self._listener is not None:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            try:
                channel = Channel(connection)
            except GpupoolError as error:
                log.warning("takeover_refused", why=error.message)
                continue
            if await self._lend(channel):
                self._listener.close()
                self._listener = None
                return channel
            channel.close()
        never: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        return await never

    async def _lend(self, channel: Channel) -> bool:
        log.info("takeover_asked", pid=channel.peer_pid)
        try:
            greeting = {"listener": 1, "pid": os.getpid(), "version": gpupool.__version__}
            listener = self._door.listener
            await channel.send(greeting, None if listener is None else listener.fileno())
            await _word(channel, "ready", READY_SECONDS)
            self._door.shut()
            await channel.send({"yours": True})
            await _word(channel, "serving")
            await channel.send({"leaving": True})
        except GpupoolError as error:
            await self._door.open()
            log.warning("takeover_failed", pid=channel.peer_pid, why=error.message)
            return False
        log.info("taken_over", pid=channel.peer_pid)
        return True

    def close(self) -> None:
        """Be there for nobody any more; leave alone what a successor has put in our place."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):
                if self._path.stat().st_ino == self._inode:
                    self._path.unlink()


async def _word(channel: Channel, word: str, seconds: float = 10.0) -> None:
    received = await channel.receive(seconds)
    if received is None or word not in received[0]:
        raise SuccessorGoneError


class SuccessorGoneError(GpupoolError):
    """The successor ended before it served."""


class Successor:
    """Takes the clients of a proxy that leaves."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def take(self, speech: Speech, transport: asyncio.Transport) -> bool:
        """Send a connection to the successor."""
        descriptor = descriptor_of(transport)
        try:
            return descriptor is not None and self._channel.send_now({"client": speech.value}, descriptor)
        except GpupoolError:
            # Whoever watches the channel sees its end.
            return False


async def leave_to(channel: Channel, core: ProxyCore, door: Door) -> bool:
    """Finish what is under way and give every client to the successor; False where it died and we serve on."""
    core.heir = Successor(channel)
    drained = asyncio.create_task(core.drain(core.settings.drain_seconds))
    heard = asyncio.create_task(channel.receive(None))
    try:
        await asyncio.wait({drained, heard}, return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            return True
        if heard.result() is not None:
            # It stops in good order: nobody is to serve on.
            core.heir = None
            await drained
            return True
        core.resume()
        await door.open()
        log.warning("successor_gone", pid=channel.peer_pid, what="serving on in its place")
        return False
    finally:
        for task in (drained, heard):
            task.cancel()
        await asyncio.gather(drained, heard, return_exceptions=True)
        channel.close()
