"""A proxy is replaced under load and no lookup is lost, whoever dies on the way."""

import asyncio
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gpupool.core.errors import UnsupportedError
from gpupool.recompute.proxy import main as proxy_main
from gpupool.recompute.proxy.channels import connect_to, read_message
from gpupool.recompute.proxy.settings import ProxySettings
from polling import eventually
from proxy_program import COMMAND, DROP_IN, Load, Program, program
from proxy_stage import FrameNode, HttpNode, frame, nodes, read_frame


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def socket_file(home: Path, port: int) -> Path:
    return home / "run" / f"proxy-127.0.0.1-{port}.sock"


class Site:
    """Two servers and the proxies that serve one address in turn."""

    def __init__(self, stack: AsyncExitStack, port: int) -> None:
        self.frames, self.http = FrameNode(), HttpNode()
        self.port = port
        self._stack = stack

    async def start(self, *more: str, code: str = DROP_IN) -> Program:
        """Begin with a proxy without waiting for anything."""
        behind = ("-n", self.frames.address, "-n", self.http.address)
        words = ("recompute", "proxy") if code == COMMAND else ()
        return await self._stack.enter_async_context(
            program(code, *words, "--host", "127.0.0.1", "-p", str(self.port), *behind, *more)
        )

    async def serving(self, *more: str, code: str = DROP_IN) -> Program:
        """Start a proxy and wait until it serves."""
        started = await self.start(*more, code=code)
        await started.listening()
        return started


@asynccontextmanager
async def site(port: int) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        made = Site(stack, port)
        await stack.enter_async_context(nodes(made.frames, made.http))
        yield made


async def test_many_restarts_under_load_lose_no_lookup_and_no_connection(free_port: int) -> None:
    async with site(free_port) as place:
        now = await place.serving()
        load = Load(free_port)
        async with load.running():
            await load.goes_on()
            for code in (DROP_IN, COMMAND, DROP_IN, DROP_IN):
                before, now = now, await place.serving("--takeover", code=code)
                assert await before.ended() == 0
                await load.goes_on()
        assert load.lost == []
        assert {name: count for name, count in load.connections.items() if "kept" in name} == {
            "frames, kept": load.each,
            "http, kept": load.each,
        }
        now.process.send_signal(signal.SIGTERM)
        assert await now.ended() == 0


async def test_what_is_under_way_is_finished_by_the_old_one_and_the_connection_goes_on(
    free_port: int,
) -> None:
    async with site(free_port) as place:
        old = await place.serving()
        place.frames.delay = 1.0
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        half, half_writer = await asyncio.open_connection("127.0.0.1", free_port)
        half_writer.write(frame(b"split")[:6])
        writer.write(frame(b"slow"))
        await eventually(lambda: frame(b"slow") in place.frames.seen, 30, "the request reaching the server")
        await place.serving("--takeover")
        place.frames.delay = 0.0
        half_writer.write(frame(b"split")[6:])
        assert await read_frame(reader) == frame(b"re:slow")
        assert await read_frame(half) == frame(b"re:split")
        assert await old.ended() == 0
        for each, ask in ((reader, writer), (half, half_writer)):
            ask.write(frame(b"again"))
            assert await read_frame(each) == frame(b"re:again")
            ask.transport.abort()


async def test_a_successor_killed_before_it_is_ready_costs_nothing(free_port: int) -> None:
    async with site(free_port) as place:
        old = await place.serving()
        load = Load(free_port)
        async with load.running():
            await load.goes_on()
            # This one is silent, so the successor looks at it for longest.
            with socket.create_server(("127.0.0.1", 0)) as silent:
                new = await place.start("--takeover", "-n", f"127.0.0.1:{silent.getsockname()[1]}")
                await old.says("takeover_asked")
                new.process.kill()
                await old.says("takeover_failed")
            await load.goes_on()
            newer = await place.serving("--takeover")
            assert await old.ended() == 0
            await load.goes_on()
        assert load.lost == []
        assert newer.process.returncode is None


async def test_a_successor_killed_while_the_old_one_leaves_gives_it_all_back(free_port: int) -> None:
    async with site(free_port) as place:
        old = await place.serving()
        place.frames.delay = 3.0
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(frame(b"slow"))
        await eventually(lambda: frame(b"slow") in place.frames.seen, 30, "the request reaching the server")
        new = await place.serving("--takeover")
        await old.says("taken_over")
        new.process.kill()
        await old.says("successor_gone")
        assert await read_frame(reader) == frame(b"re:slow")
        writer.transport.abort()
        place.frames.delay = 0.0
        load = Load(free_port)
        async with load.running():
            await load.goes_on()
            await place.serving("--takeover")
            assert await old.ended() == 0
            await load.goes_on()
        assert load.lost == []


async def test_an_old_one_killed_while_it_leaves_loses_only_what_it_had(free_port: int) -> None:
    async with site(free_port) as place:
        old = await place.serving()
        place.frames.delay = 30.0
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(frame(b"slow"))
        await eventually(lambda: frame(b"slow") in place.frames.seen, 30, "the request reaching the server")
        place.frames.delay = 0.0
        load = Load(free_port)
        await place.serving("--takeover")
        async with load.running():
            await load.goes_on()
            old.process.kill()
            assert await reader.read() == b""
            await load.goes_on()
        writer.transport.abort()
        assert load.lost == []


async def test_an_old_one_killed_before_it_lets_go_is_followed(free_port: int) -> None:
    async with site(free_port) as place:
        old = await place.serving()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            new = await place.start("--takeover", "-n", f"127.0.0.1:{silent.getsockname()[1]}")
            await old.says("takeover_asked")
            old.process.kill()
            await new.listening()
        load = Load(free_port)
        async with load.running():
            await load.goes_on()
        assert load.lost == []


async def test_with_nothing_to_take_over_it_just_starts(free_port: int, home: Path) -> None:
    async with site(free_port) as place:
        first = await place.serving("--takeover")
        assert any("nothing to take over" in line for line in first.out)
        found = socket_file(home, free_port)
        await eventually(found.exists, 20, "the socket for successors")
        assert stat.S_IMODE(found.stat().st_mode) == 0o600
        assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
        first.process.kill()
        await first.ended()
        # What the dead one left is in nobody's way.
        second = await place.serving("--takeover")
        second.process.send_signal(signal.SIGTERM)
        assert await second.ended() == 0
        assert not found.exists()


async def test_without_the_word_a_taken_port_stays_taken(free_port: int) -> None:
    async with site(free_port) as place:
        await place.serving()
        second = await place.start()
        assert await second.ended() == 3
        assert any("--takeover" in line for line in second.log)


async def test_one_that_only_asks_and_goes_changes_nothing(free_port: int, home: Path) -> None:
    async with site(free_port) as place:
        old = await place.serving()
        path = socket_file(home, free_port)
        await eventually(path.exists, 20, "the socket for successors")
        for words in (b'{"serving": true}', b"\xff", b""):
            connection = connect_to(path)
            assert connection is not None
            with connection:
                received = read_message(connection)
                assert received is not None
                assert received[0]["pid"] == old.process.pid
                assert received[1] is not None
                os.close(received[1])
                if words:
                    connection.send(words)
        load = Load(free_port)
        async with load.running():
            await load.goes_on()
        assert load.lost == []


def test_where_it_is_not_available_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_main, "AVAILABLE", False)
    with pytest.raises(UnsupportedError, match="not available on this system"):
        proxy_main.run(ProxySettings(nodes=("localhost",), takeover=True), lambda line: None)
