"""As under systemd: the socket is kept by who starts the proxy, clients too, and a restart loses nothing.

`Keeper` does what systemd does with a socket unit, `Type=notify` and `FileDescriptorStoreMax=`.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.proxy.systemd import kept_for_us
from polling import eventually
from proxy_program import COMMAND, DROP_IN, Load, Program, ask_http, program
from proxy_stage import FrameNode, HttpNode, frame, nodes, read_frame

# Descriptors from 3 on, and the own pid, as a program that systemd starts finds them.
BEGIN = """
import fcntl, os
given = [int(one) for one in os.environ.pop("TEST_KEPT").split()]
kept = [fcntl.fcntl(one, fcntl.F_DUPFD, 200) for one in given]
for one in given:
    os.close(one)
for place, one in enumerate(kept, start=3):
    os.dup2(one, place)
    os.close(one)
os.environ["LISTEN_FDS"], os.environ["LISTEN_PID"] = str(len(kept)), str(os.getpid())
"""


class Keeper:
    """Keeps sockets while no proxy runs."""

    def __init__(self, folder: Path, at: Path | None = None) -> None:
        """``at``: the path of a Unix socket, in place of a port."""
        if at is None:
            self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(at))
            self.listener.listen(512)
        self.port = 0 if at is not None else self.listener.getsockname()[1]
        self.said: list[str] = []
        self.stored: list[tuple[str, int]] = []
        self._path = str(folder / "notify")
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(self._path)
        self._notify.setblocking(False)

    def read(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._notify, 4096, 16)
        lines = data.decode().splitlines()
        self.said += lines
        name = next((line.partition("=")[2] for line in lines if line.startswith("FDNAME=")), "")
        if "FDSTORE=1" in lines:
            self.stored += [(name, one) for one in descriptors]
            return
        for one in descriptors:
            os.close(one)
        if "FDSTOREREMOVE=1" in lines:
            for pair in [pair for pair in self.stored if pair[0] == name]:
                os.close(pair[1])
                self.stored.remove(pair)

    @asynccontextmanager
    async def proxy(self, *arguments: str, code: str = DROP_IN) -> AsyncIterator[Program]:
        passed = [self.listener.fileno(), *(one for _, one in self.stored)]
        environment = os.environ | {
            "NOTIFY_SOCKET": self._path,
            "LISTEN_FDNAMES": ":".join(["gpupool.socket", *(name for name, _ in self.stored)]),
            "TEST_KEPT": " ".join(map(str, passed)),
        }
        asyncio.get_running_loop().add_reader(self._notify, self.read)
        async with program(BEGIN + code, *arguments, env=environment, pass_fds=passed) as started:
            yield started

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._notify)
        self._notify.close()
        self.listener.close()
        for _, one in self.stored:
            os.close(one)


async def test_restarts_under_load_lose_no_lookup_and_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))
    keeper, http, frames = Keeper(tmp_path), HttpNode(), FrameNode()
    load = Load(keeper.port)
    try:
        async with nodes(http, frames), load.running():
            for _ in range(3):
                keeper.said.clear()
                async with keeper.proxy("-n", http.address, "-n", frames.address) as now:
                    await now.listening()
                    assert now.out[-1] == f"ReComputeProxy listening on 127.0.0.1 port {keeper.port}"
                    await eventually(lambda: "READY=1" in keeper.said, 20, "READY=1")
                    assert not keeper.stored
                    await load.goes_on()
                    now.process.send_signal(signal.SIGTERM)
                    assert await now.ended() == 0
                    assert "STOPPING=1" in keeper.said
            async with keeper.proxy("-n", http.address, "-n", frames.address) as now:
                await now.listening()
                await load.goes_on()
                await load.finish()
        assert load.lost == []
        kept = {name: count for name, count in load.connections.items() if "kept" in name}
        assert kept == {"frames, kept": load.each, "http, kept": load.each}
    finally:
        keeper.close()


async def test_a_client_that_was_kept_sees_the_end_when_the_proxy_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is taken back; else a connection that the proxy closes would stay open for its client."""
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))
    keeper, node = Keeper(tmp_path), FrameNode()
    try:
        async with nodes(node):
            async with keeper.proxy("-n", node.address) as now:
                await now.listening()
                reader, writer = await asyncio.open_connection("127.0.0.1", keeper.port)
                writer.write(frame(b"a"))
                assert await read_frame(reader) == frame(b"re:a")
                now.process.send_signal(signal.SIGTERM)
                assert await now.ended() == 0
            await eventually(
                lambda: [name for name, _ in keeper.stored] == ["client-frames"], 20, "it being kept"
            )
            async with keeper.proxy("-n", node.address) as now:
                await eventually(lambda: not keeper.stored, 30, "it being taken back")
                writer.write(frame(b"b"))
                assert await read_frame(reader) == frame(b"re:b")
                writer.write(b"\xff\xff\xff\x00")
                assert await reader.read() == b""
                writer.transport.abort()
    finally:
        keeper.close()


async def test_a_harvester_that_keeps_its_connection_to_the_sidecar_does_not_notice_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))
    path, node = tmp_path / "s", HttpNode()
    keeper = Keeper(tmp_path, path)
    try:
        async with nodes(node):
            given = ("recompute", "proxy", "--unix", str(path), "-n", node.address)
            streams = await asyncio.open_unix_connection(path)
            for number in range(3):
                async with keeper.proxy(*given, code=COMMAND) as now:
                    await now.says(f"listening at {path}", now.out)
                    await now.says("node_found")
                    await ask_http(streams, number)
                    now.process.send_signal(signal.SIGTERM)
                    assert await now.ended() == 0
                    await eventually(lambda: len(keeper.stored) == 1, 20, "the connection being kept")
            streams[1].transport.abort()
            assert path.exists()
    finally:
        keeper.close()


def test_what_was_meant_for_another_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert kept_for_us().listener is None
    assert "LISTEN_FDS" not in os.environ


def test_a_descriptor_that_does_not_listen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = socket.socket().detach()
    monkeypatch.setattr("gpupool.recompute.proxy.systemd.FIRST_DESCRIPTOR", plain)
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    with pytest.raises(InvalidInputError, match="no stream socket that listens"):
        kept_for_us()
