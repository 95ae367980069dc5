"""Messages between a proxy and its successor over a local socket: a small JSON object, with a descriptor or without.

Only Linux has all that this needs: messages that keep their borders and carry descriptors, the peer's user told by
the kernel, and a way to name a socket whose path is longer than an address may be.
"""

import asyncio
import contextlib
import errno
import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpupool.core.errors import ForbiddenError, UnavailableError

AVAILABLE: Final = sys.platform == "linux"
MESSAGE_BYTES: Final = 4096
PATIENCE_SECONDS: Final = 10.0
"""How long one side waits for the other's next word."""
Message = dict[str, object]


class Channel:
    """One end of a connection between two proxies."""

    def __init__(self, connection: socket.socket) -> None:
        """Raise ForbiddenError where the peer is another user's process."""
        self._socket = connection
        pid, user, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        self.peer_pid = int(pid)
        if user != os.geteuid():
            connection.close()
            raise ForbiddenError(
                f"A process of another user (pid {pid}) is at the other end of the handover.",
                remedy="Run both proxies as the same user.",
            )
        connection.setblocking(False)

    def send_now(self, message: Message, descriptor: int | None = None) -> bool:
        """Send without waiting; False where the other side has to read first.

        Raises UnavailableError where there is no other side any more.
        """
        data = json.dumps(message).encode()
        try:
            if descriptor is None:
                self._socket.send(data)
            else:
                socket.send_fds(self._socket, [data], [descriptor])
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                return False
            raise UnavailableError(f"The other proxy is gone: {error.strerror}.") from error
        return True

    async def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send; raise UnavailableError where the other side is gone or does not read."""
        with _in_time():
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not self.send_now(message, descriptor):
                    await self._when(writable=True)

    async def receive(self, seconds: float | None = PATIENCE_SECONDS) -> tuple[Message, int | None] | None:
        """Return the next message and its descriptor, which is the caller's to close; None when the peer has ended.

        Raises UnavailableError when none comes in ``seconds``.
        """
        with _in_time():
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        return read_message(self._socket)
                    except BlockingIOError:
                        await self._when(writable=False)

    async def _when(self, *, writable: bool) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        watch: Callable[..., None] = loop.add_writer if writable else loop.add_reader
        forget: Callable[..., bool] = loop.remove_writer if writable else loop.remove_reader

        def tell() -> None:
            if not ready.done():
                ready.set_result(None)

        watch(self._socket, tell)
        try:
            await ready
        finally:
            forget(self._socket)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise UnavailableError("The other proxy says nothing.") from error


def read_message(connection: socket.socket) -> tuple[Message, int | None] | None:
    """Return one message that is there; None at the end. Raises BlockingIOError where there is none yet."""
    try:
        data, descriptors, flags, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
    except BlockingIOError:
        raise
    except OSError:
        return None
    descriptor = descriptors[0] if descriptors else None
    try:
        message = json.loads(data) if data else None
    except ValueError:
        message = None
    if isinstance(message, dict) and not flags & socket.MSG_TRUNC:
        return message, descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


def listen_at(path: Path) -> socket.socket:
    """Return a socket that listens at ``path``, for its owner only, in place of whatever was there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short(temporary) as name:
            listener.bind(name)
        os.chmod(temporary, 0o600)
        listener.listen(4)
        listener.setblocking(False)
        os.replace(temporary, path)
    except OSError:
        listener.close()
        temporary.unlink(missing_ok=True)
        raise
    return listener


def connect_to(path: Path) -> socket.socket | None:
    """Return a connection to who listens at ``path``, None where nobody does; raise OSError on any other fault."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE_SECONDS)
    try:
        with _short(path) as name:
            connection.connect(name)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Give a name for ``path`` that fits into the 107 bytes of an address."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
