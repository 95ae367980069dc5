"""The successor's side of a takeover (see `handover` for who says what when): get the socket, look at the nodes, serve.

Until it has looked at its nodes the running proxy goes on as if nothing were; so a successor that cannot start costs
nobody anything.
"""

import asyncio
import os
import socket
from pathlib import Path
from typing import Final

import structlog

from gpupool.core.errors import ConflictError, EnvironmentProblemError, GpupoolError, UnavailableError
from gpupool.core.processes import identify
from gpupool.recompute.addresses import Address, format_address
from gpupool.recompute.proxy.channels import Channel, connect_to, read_message
from gpupool.recompute.proxy.door import Door
from gpupool.recompute.proxy.framing import Speech
from gpupool.recompute.proxy.heirs import Adopted
from gpupool.recompute.proxy.proxying import ProxyCore

LOOK_SECONDS: Final = 3.0
"""How long the nodes have to say what they speak before it goes on without them."""
DYING_SECONDS: Final = 2.0
"""How long the other proxy may take to be gone after its socket is."""
_PAUSE: Final = 0.02
log = structlog.get_logger(__name__)


class Takeover:
    """What a successor has got: the listening socket, and a line to the proxy that it follows."""

    def __init__(self, listener: socket.socket, channel: Channel) -> None:
        self.listener = listener
        self.channel = channel
        self._before = identify(channel.peer_pid)

    async def claim(self, core: ProxyCore, door: Door) -> None:
        """Open ``door`` as soon as the nodes are known and the other proxy has shut its own.

        Raises ConflictError where that one lives but does not let go.
        """
        await _nodes_known(core)
        if await self._asks({"ready": True}, "yours"):
            await door.open()
            if await self._asks({"serving": True}, "leaving"):
                return
        if self._before is not None and not await asyncio.to_thread(self._before.wait_gone, DYING_SECONDS):
            raise ConflictError(
                f"The running proxy (pid {self.channel.peer_pid}) has not let go; it serves on.",
                remedy="Look at its log, then try again.",
            )
        log.warning("predecessor_gone", pid=self.channel.peer_pid)
        await door.open()

    async def _asks(self, message: dict[str, object], answer: str) -> bool:
        try:
            await self.channel.send(message)
            received = await self.channel.receive()
        except UnavailableError:
            return False
        return received is not None and answer in received[0]

    async def adopt(self, core: ProxyCore) -> None:
        """Take the other proxy's clients until it has none left."""
        core.inheriting = True
        count = 0
        try:
            while (received := await self.channel.receive(None)) is not None:
                message, descriptor = received
                if descriptor is not None:
                    await adopt_client(core, str(message.get("client")), descriptor)
                    count += 1
        finally:
            core.inheriting = False
        log.info("predecessor_left", pid=self.channel.peer_pid, clients=count)

    def stopping(self) -> None:
        """Say that we stop in good order, so that the other proxy, if it is still there, does not serve on."""
        try:
            self.channel.send_now({"stopping": True})
        except GpupoolError:
            return
        finally:
            self.channel.close()


async def adopt_client(core: ProxyCore, speech: str, descriptor: int) -> None:
    """Go on with a connection between two requests; ``speech`` is what it speaks."""
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Adopted(core, Speech(speech)), connection
        )
    except OSError:
        # It has ended on the way.
        connection.close()


def ask_for_socket(path: Path, address: Address) -> Takeover | None:
    """Get the listening socket of the proxy that is there for ``path``; None where none is.

    Raises ForbiddenError where it is another user's, EnvironmentProblemError where it can't be asked or has another
    address, UnavailableError where it does not answer.
    """
    try:
        connection = connect_to(path)
    except OSError as error:
        raise EnvironmentProblemError(
            f"The running proxy cannot be asked at {path}: {error.strerror or error}.",
            remedy="Use the same GPUPOOL_HOME and user for both.",
        ) from error
    if connection is None:
        return None
    try:
        received = read_message(connection)
    except BlockingIOError:
        received = None
    if received is None or received[1] is None:
        connection.close()
        raise UnavailableError(
            f"The running proxy of {format_address(address)} does not hand its socket over.",
            remedy="It may be stopping, or busy with another successor: try again.",
        )
    channel = Channel(connection)
    listener = socket.socket(fileno=received[1])
    if listener.getsockname()[1] != address[1] or not listener.getsockopt(
        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    ):
        listener.close()
        raise EnvironmentProblemError(f"What listens at {path} is no proxy of {format_address(address)}.")
    os.set_inheritable(listener.fileno(), False)
    return Takeover(listener, channel)


async def _nodes_known(core: ProxyCore) -> None:
    """Wait until every node has said what it speaks, or that it can't be reached; not for ever."""
    for _ in range(int(LOOK_SECONDS / _PAUSE)):
        if _all_looked_at(core):
            return
        await asyncio.sleep(_PAUSE)
    log.warning("nodes_not_known_yet", seconds=LOOK_SECONDS)


def _all_looked_at(core: ProxyCore) -> bool:
    nodes = core.directory.nodes.values()
    return bool(nodes) and all(node.kinds or node.trouble or node.refused for node in nodes)
