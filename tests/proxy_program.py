"""Started programs whose lines a test can wait for, and load that tells every lookup it lost."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from polling import eventually
from proxy_stage import frame, read_frame

DROP_IN = "from gpupool.cli.recompute_proxy_dropin import main; main()"
COMMAND = "from gpupool.cli.main import main; main()"
QUESTION = b'{"level": 1}'


class Program:
    """A started program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out: list[str] = []
        self.log: list[str] = []

    async def follow(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        while line := await stream.readline():
            lines.append(line.decode().rstrip("\r\n"))

    async def ended(self) -> int:
        async with asyncio.timeout(40):
            return await self.process.wait()

    async def listening(self) -> None:
        await self.says("listening", self.out)

    async def says(self, words: str, lines: list[str] | None = None) -> None:
        """Wait for a line with ``words``, of the log where no other lines are named."""
        looked_at = self.log if lines is None else lines
        await eventually(
            lambda: any(words in line for line in looked_at) or self.process.returncode is not None,
            60,
            f"the line {words!r}",
        )
        assert any(words in line for line in looked_at), (self.out, self.log)


@asynccontextmanager
async def program(code: str, *arguments: str, **more: object) -> AsyncIterator[Program]:
    """Run Python code with arguments; ``more`` goes to the start, as `pass_fds` and `env`."""
    async with running(sys.executable, "-c", code, *arguments, **more) as started:
        yield started


@asynccontextmanager
async def running(*command: str, **more: object) -> AsyncIterator[Program]:
    """Run any command, as `program` does Python code."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        **more,  # type: ignore[arg-type]
    )
    assert process.stdout is not None
    assert process.stderr is not None
    started = Program(process)
    readers = [
        asyncio.create_task(started.follow(process.stdout, started.out)),
        asyncio.create_task(started.follow(process.stderr, started.log)),
    ]
    try:
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.gather(*readers)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask_frames(streams: Streams, number: int) -> None:
    payload = b"%d" % number
    streams[1].write(frame(payload))
    answer = await read_frame(streams[0])
    assert answer == frame(b"re:" + payload), answer


async def ask_http(streams: Streams, number: int) -> None:
    head = b"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nX-Request-Id: r%d\r\nContent-Length: %d\r\n\r\n"
    streams[1].write(head % (number, len(QUESTION)) + QUESTION)
    async with asyncio.timeout(20):
        answered = (await streams[0].readuntil(b"\r\n\r\n")).lower()
        size = int(answered.split(b"content-length: ")[1].split(b"\r\n")[0])
        await streams[0].readexactly(size)
    assert answered.startswith(b"http/1.1 200"), answered
    assert b"x-request-id: r%d\r\n" % number in answered, answered


@dataclass
class Load:
    """Clients that ask without a pause: of both protocols, with kept connections and with one a request."""

    port: int
    each: int = 3
    done: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    connections: dict[str, int] = field(default_factory=dict)
    _stopped: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def _client(self, name: str, ask: Callable[[Streams, int], Awaitable[None]], *, keep: bool) -> None:
        streams: Streams | None = None
        number = 0
        while not self._stopped:
            number += 1
            try:
                if streams is None:
                    self.connections[name] = self.connections.get(name, 0) + 1
                    streams = await asyncio.open_connection("127.0.0.1", self.port)
                await ask(streams, number)
                self.done[name] = self.done.get(name, 0) + 1
            except (OSError, asyncio.IncompleteReadError, TimeoutError, AssertionError) as error:
                self.lost.append(f"{name}: {error!r}")
                keep_this = False
            else:
                keep_this = keep
            if streams is not None and not keep_this:
                streams[1].transport.abort()
                streams = None
        if streams is not None:
            streams[1].transport.abort()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        """Ask for as long as the block lasts, or until `finish`."""
        self._tasks = [
            asyncio.create_task(self._client(name, ask, keep=keep))
            for _ in range(self.each)
            for name, ask, keep in (
                ("frames, kept", ask_frames, True),
                ("frames, one each", ask_frames, False),
                ("http, kept", ask_http, True),
                ("http, one each", ask_http, False),
            )
        ]
        try:
            yield self
        finally:
            await self.finish()

    async def finish(self) -> None:
        """Let every client have its last answer and go."""
        self._stopped = True
        async with asyncio.timeout(60):
            await asyncio.gather(*self._tasks)

    async def goes_on(self, more: int = 20) -> None:
        """Wait until every sort of client has got ``more`` answers."""
        before = dict(self.done)
        await eventually(
            lambda: (
                len(self.done) == 4
                and all(count >= before.get(name, 0) + more for name, count in self.done.items())
            ),
            60,
            f"{more} more answers of every sort (lost: {self.lost}, before: {before}, done: {self.done})",
        )
