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
            process = await asyncio.create_subprocess_exec(
                self._program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
                start_new_session=sys.platform != "win32",
            )
        except OSError as error:
            raise HookError(f"it cannot be started: {error.strerror or error}") from error
        told = asyncio.ensure_future(_first_words(cast("asyncio.StreamReader", process.stderr)))
        try:
            async with asyncio.timeout(self._seconds):
                await _feed(cast("asyncio.StreamWriter", process.stdin), message)
                status = await process.wait()
            await asyncio.wait({told}, timeout=0.5)
        except TimeoutError as error:
            raise HookError(f"it did not end within {self._seconds:g} s and was ended") from error
        finally:
            _end(process)
            told.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                words = await told
        if status != 0:
            raise HookError(f"it ended with status {status}{f': {words}' if words else ''}")


async def _feed(stdin: asyncio.StreamWriter, message: bytes) -> None:
    # A program that does not read its input is free not to.
    with contextlib.suppress(ConnectionError):
        stdin.write(message)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


async def _first_words(stderr: asyncio.StreamReader) -> str:
    """Read to the end, however much it is, and return the beginning."""
    words = b""
    try:
        while piece := await stderr.read(4096):
            words += piece[: _MOST_WORDS - len(words)]
    except asyncio.CancelledError:
        pass
    return " ".join(words.decode("utf-8", "replace").split())


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)


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
