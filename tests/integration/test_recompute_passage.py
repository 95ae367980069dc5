"""The way of frames through a keeper: no more connections than the program serves, and none for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpupool.recompute.server import passage
from gpupool.recompute.server.capacity import usable_cores
from gpupool.recompute.server.passage import Passage, places
from polling import eventually


class Program:
    """Answers each connection's bytes once the client has said all, as soon as it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.may.set()
        self.heard = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard += 1
        said = await reader.read(100)
        await self.may.wait()
        writer.write(said[::-1])
        writer.close()


@asynccontextmanager
async def opened(program: Program, most: int) -> AsyncIterator[tuple[Passage, int]]:
    """A passage to a program, and the port of its near end."""
    loop = asyncio.get_running_loop()
    far = await asyncio.start_server(program.serve, passage.HOST, 0)
    way = Passage(far.sockets[0].getsockname()[1], most)
    near = await loop.create_server(way.protocol, passage.HOST, 0)
    try:
        yield way, near.sockets[0].getsockname()[1]
    finally:
        near.close()
        far.close()
        await eventually(lambda: way.open == 0)


async def ask(port: int, *, half: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection(passage.HOST, port)
    try:
        writer.write(b"abc")
        if half:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_bytes_go_both_ways_also_when_the_client_has_said_all() -> None:
    async with opened(Program(), 2) as (way, port):
        assert await ask(port) == b"cba"
        assert await ask(port, half=True) == b"cba"
        assert way.refused == 0


async def test_who_finds_no_place_waits_and_is_closed_when_none_comes_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passage, "WAIT_SECONDS", 0.2)
    program = Program()
    program.may.clear()
    async with opened(program, 2) as (way, port):
        served = [asyncio.create_task(ask(port)) for _ in range(2)]
        await eventually(lambda: program.heard == 2)
        assert await ask(port) == b""
        assert (way.refused, program.heard) == (1, 2)
        program.may.set()
        assert await asyncio.gather(*served) == [b"cba"] * 2
        assert await ask(port) == b"cba"


async def test_a_place_comes_free_for_who_waits() -> None:
    program = Program()
    program.may.clear()
    async with opened(program, 1) as (_, port):
        first = asyncio.create_task(ask(port))
        await eventually(lambda: program.heard == 1)
        second = asyncio.create_task(ask(port))
        program.may.set()
        assert (await first, await second) == (b"cba", b"cba")


async def test_silence_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage, "SILENT_SECONDS", 0.2)
    program = Program()
    program.may.clear()
    async with opened(program, 1) as (way, port):
        assert await ask(port) == b""
        await eventually(lambda: way.open == 0)
        program.may.set()


async def test_a_program_that_is_not_there_is_told_at_once() -> None:
    loop = asyncio.get_running_loop()
    gone = await asyncio.start_server(Program().serve, passage.HOST, 0)
    way = Passage(gone.sockets[0].getsockname()[1], 1)
    gone.close()
    await gone.wait_closed()
    near = await loop.create_server(way.protocol, passage.HOST, 0)
    assert await ask(near.sockets[0].getsockname()[1]) == b""
    assert way.refused == 1
    near.close()


def test_the_places_are_those_that_were_counted_and_the_page_says_so(checkout: Path) -> None:
    assert [places(threads) for threads in (1, 2, 4, 8, 16, 32)] == [12, 14, 18, 26, 42, 74]
    assert places(0) == places(-3) == 2 * usable_cores() + 10
    page = (checkout / "docs" / "reference" / "limits.md").read_text()
    assert f"2 x threads + 10; the next waits {passage.WAIT_SECONDS:g} s" in page
    assert f"neither side says anything | {passage.SILENT_SECONDS:g} s" in page
