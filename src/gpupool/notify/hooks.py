"""Where alerts go: a program of the operator, or a web address. Each gets the message as JSON and a time limit.

The program is started without a shell, with the message on standard input, and without our variables, some of which
are secrets. The address is https, or http on this machine; of it only the host is ever shown or logged, because the
path of a chat's hook is a secret.
"""

import asyncio
import contextlib
import ipaddress
import os
import shutil
import signal
import ssl
import sys
from pathlib import Path
from typing import Final, Protocol, cast
from urllib.parse import SplitResult, urlsplit

from gpupool.core.errors import InvalidInputError

SECONDS: Final = 10.0
_MOST_WORDS: Final = 300
_LAST_WORDS_SECONDS: Final = 0.5
_MOST_HEAD: Final = 16 * 1024
_OURS: Final = "GPUPOOL_"


class HookError(Exception):
    """A hook did not take its message; the text says why."""


class Hook(Protocol):
    """Takes messages."""

    name: str

    async def send(self, message: bytes) -> None:
        """Deliver; raise HookError where it fails or takes longer than the limit."""
        ...


class CommandHook:
    """A program."""

    def __init__(self, program: Path, seconds: float = SECONDS) -> None:
        """Raise InvalidInputError where ``program`` can't be started."""
        found = shutil.which(program)
        if found is None:
            raise InvalidInputError(
                f"The alert command {program} is not there or may not be executed.",
                remedy="Give the path of one program, without arguments; it gets JSON on its standard input.",
            )
        self.name = f"command {program}"
        self._program = str(Path(found).absolute())
        self._seconds = seconds

    async def send(self, message: bytes) -> None:
        """Run it; exit status 0 means delivered."""
        try:
            transport, run = await asyncio.get_running_loop().subprocess_exec(
                _Run,
                self._program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
                start_new_session=sys.platform != "win32",
            )
        except OSError as error:
            raise HookError(f"it cannot be started: {error.strerror or error}") from error
        try:
            run.feed(transport, message)
            async with asyncio.timeout(self._seconds):
                await run.ended.wait()
            with contextlib.suppress(TimeoutError):
                # Something that it has left behind may still hold its standard error.
                await asyncio.wait_for(run.told.wait(), _LAST_WORDS_SECONDS)
        except TimeoutError as error:
            raise HookError(f"it did not end within {self._seconds:g} s and was ended") from error
        finally:
            await run.end(transport)
        if status := transport.get_returncode():
            raise HookError(f"it ended with status {status}{run.words}")


class _Run(asyncio.SubprocessProtocol):
    """A started program: when it ends, and the first words of its standard error, however much that is."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.told = asyncio.Event()
        self._said = b""

    @property
    def words(self) -> str:
        said = " ".join(self._said.decode("utf-8", "replace").split())
        return f": {said}" if said else ""

    def feed(self, transport: asyncio.SubprocessTransport, message: bytes) -> None:
        pipe = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        pipe.write(message)
        pipe.write_eof()

    async def end(self, transport: asyncio.SubprocessTransport) -> None:
        if not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                if sys.platform == "win32":
                    transport.kill()
                else:
                    os.killpg(transport.get_pid(), signal.SIGKILL)
            await self.ended.wait()
        transport.close()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if isinstance(data, bytes):
            self._said += data[: _MOST_WORDS - len(self._said)]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:
            self.told.set()

    def process_exited(self) -> None:
        self.ended.set()


class UrlHook:
    """A web address that takes JSON by POST."""

    def __init__(self, url: str, seconds: float = SECONDS) -> None:
        """Raise InvalidInputError where ``url`` is not https, nor http to this machine."""
        parts = self._parts = _checked(url)
        self.name = f"url {parts.scheme}://{parts.hostname}"
        self._seconds = seconds

    async def send(self, message: bytes) -> None:
        """Post it; a status of 200 to 299 means delivered, and no redirection is followed."""
        try:
            async with asyncio.timeout(self._seconds):
                status = await self._post(message)
        except TimeoutError as error:
            raise HookError(f"it did not answer within {self._seconds:g} s") from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise HookError(f"it cannot be reached: {error}") from error
        if not 200 <= status <= 299:
            raise HookError(f"it answered with status {status}")

    async def _post(self, message: bytes) -> int:
        parts = self._parts
        context = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if context else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context, limit=_MOST_HEAD)
        try:
            target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
            head = (
                f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
                f"User-Agent: gpupool\r\nContent-Length: {len(message)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode("ascii") + message)
            await writer.drain()
            words = (await reader.readuntil(b"\n")).split()
            return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") else 0
        finally:
            writer.transport.abort()


def _checked(url: str) -> SplitResult:
    remedy = "Give an https:// address, or http:// with an address of this machine (127.0.0.1)."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInputError("The alert address is no URL.", remedy=remedy) from error
    plain = parts.scheme == "http" and host is not None and _is_loopback(host)
    if not host or not (parts.scheme == "https" or plain) or "@" in parts.netloc:
        raise InvalidInputError("The alert address is neither https nor on this machine.", remedy=remedy)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidInputError("The alert address holds characters that a URL cannot.", remedy=remedy)
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
