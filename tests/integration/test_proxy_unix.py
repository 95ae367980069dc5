"""The sidecar: a proxy at a Unix socket, beside a port or without one, and what harvesters tell it they have lost."""

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError, PortTakenError
from gpupool.recompute.proxy.border import BorderFiles
from gpupool.recompute.proxy.door import Door, LocalListener
from gpupool.recompute.proxy.local_socket import LONGEST, is_live, listen_at_path
from gpupool.recompute.proxy.main import running
from gpupool.recompute.proxy.metrics import metrics_page
from gpupool.recompute.proxy.proxying import ProxyCore
from gpupool.recompute.proxy.report import Report
from gpupool.recompute.proxy.settings import ProxySettings
from polling import eventually
from proxy_program import COMMAND, program
from proxy_stage import HttpNode, nodes

LOST = "qualities=3 proofs=1 fallbacks=2 pid=1234 since=1796090000 why=silent"


@asynccontextmanager
async def sidecar(path: Path, *names: str, **settings: object) -> AsyncIterator[ProxyCore]:
    """Run a proxy that listens at ``path`` alone."""
    given = ProxySettings(
        tcp=False,
        unix=path,
        nodes=names,
        drain_seconds=5.0,
        log_level="WARNING",
        check_answers=False,
        **settings,  # type: ignore[arg-type]
    )
    local = LocalListener.at(listen_at_path(path), path)
    async with running(given, None, local) as (core, _):
        yield core


async def ask(path: Path, target: str = "/v1/qualities", **headers: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_unix_connection(path)
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    body = b'{"level": 5}'
    writer.write(
        f"POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode()
    )
    writer.write(body)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), content


async def known(core: ProxyCore, count: int = 1) -> None:
    await eventually(
        lambda: sum(bool(node.kinds) for node in core.directory.nodes.values()) == count, 60, "known nodes"
    )


async def test_it_answers_at_a_path_that_only_its_user_may_open(tmp_path: Path) -> None:
    path, node = tmp_path / "made" / "s", HttpNode()
    async with nodes(node), sidecar(path, node.address) as core:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        await known(core)
        status, body = await ask(path)
        assert status == 200
        assert json.loads(body)["x"] == ["1", "2"]
        assert [row["address"] for row in Report(core).clients()] == ["unix"]
    assert not path.exists()


async def test_losses_of_the_harvester_reach_rows_and_metrics(tmp_path: Path) -> None:
    path, node = tmp_path / "s", HttpNode()
    async with nodes(node), sidecar(path, node.address) as core:
        await known(core)
        await ask(path, X_Shim_Failures=LOST)
        await ask(path, X_Shim_Failures="nonsense")
        (row,) = Report(core).clients()
        assert row["shim"] == {"qualities": 3, "proofs": 1, "fallbacks": 2, "pid": 1234, "why": "silent"}
        page = metrics_page(core)
        assert 'gpupool_proxy_shim_lost_total{kind="quality"} 3' in page
        assert 'gpupool_proxy_shim_lost_total{kind="proof"} 1' in page
        assert "gpupool_proxy_shim_fallbacks_total 2" in page


async def test_rules_for_the_network_do_not_bind_who_comes_through_the_socket(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef0123456789abcdef\n")
    tokens.chmod(0o600)
    path, node = tmp_path / "s", HttpNode()
    async with nodes(node), sidecar(path, node.address, border=BorderFiles(tokens=tokens)) as core:
        await known(core)
        assert (await ask(path))[0] == 200


def test_a_dead_socket_is_replaced_and_a_live_one_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen_at_path(path).close()
    assert path.exists()
    assert not is_live(path)
    with listen_at_path(path):
        with pytest.raises(PortTakenError, match="listens at"):
            listen_at_path(path)
        inode = path.stat().st_ino
        assert is_live(path)
        with listen_at_path(path, replacing=True):
            assert path.stat().st_ino != inode
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_what_is_no_socket_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(EnvironmentProblemError, match="no socket"):
        listen_at_path(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("path", [Path("relative.sock"), Path("/tmp") / ("x" * LONGEST)])
def test_a_path_that_is_no_address_is_refused(path: Path) -> None:
    with pytest.raises(InvalidInputError, match="absolute and at most"):
        ProxySettings(unix=path, nodes=("a",))


def test_the_longest_path_works_though_its_temporary_name_is_longer(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (LONGEST - len(os.fsencode(tmp_path)) - 1))
    with listen_at_path(path):
        assert is_live(path)


def test_a_proxy_that_listens_nowhere_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="listens nowhere"):
        ProxySettings(tcp=False, nodes=("a",))


def test_leaving_does_not_take_a_successors_path_away(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = LocalListener.at(listen_at_path(path), path)
    second = LocalListener.at(listen_at_path(path, replacing=True), path)
    first.close()
    assert is_live(path)
    second.close()
    assert not path.exists()


async def test_the_command_serves_without_a_port_and_other_commands_find_it(tmp_path: Path) -> None:
    path, node = tmp_path / "s", HttpNode()
    environment = os.environ | {"GPUPOOL_HOME": str(tmp_path / "home")}
    async with (
        nodes(node),
        program(
            COMMAND, "recompute", "proxy", "--unix", str(path), "-n", node.address, env=environment
        ) as proxy,
    ):
        await proxy.says(f"listening at {path}", proxy.out)
        await proxy.says("proxy_takes_commands")
        await proxy.says("node_found")
        assert (await ask(path, X_Shim_Failures=LOST))[0] == 200
        async with program(COMMAND, "recompute", "clients", env=environment) as shown:
            assert await shown.ended() == 0
            await shown.says("4 (last: silent)", shown.out)
        async with program(COMMAND, "recompute", "top", "--once", "--port", "0", env=environment) as shown:
            assert await shown.ended() == 0
            await shown.says("at its Unix socket", shown.out)
            await shown.says("3 qualities, 1 proofs", shown.out)
        await proxy.says("harvester_lost")
        async with program(
            COMMAND, "recompute", "proxy", "--unix", str(path), "-n", "x", env=environment
        ) as two:
            assert await two.ended() == 3
            await two.says("listens at")
        proxy.process.terminate()
        assert await proxy.ended() == 0
    assert not path.exists()


async def test_a_successor_takes_port_and_path_and_no_client_is_refused(tmp_path: Path) -> None:
    path, node = tmp_path / "s", HttpNode()
    environment = os.environ | {"GPUPOOL_HOME": str(tmp_path / "home")}
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    async with nodes(node):
        given = ("recompute", "proxy", "--unix", str(path), "-p", port, "-n", node.address)
        async with program(COMMAND, *given, env=environment) as first:
            await first.says("listening at", first.out)
            await first.says("node_found")
            async with program(COMMAND, *given, "--takeover", env=environment) as second:
                await second.says("listening at", second.out)
                assert await first.ended() == 0
                assert (await ask(path))[0] == 200
                second.process.terminate()
                assert await second.ended() == 0
    assert not path.exists()


async def test_a_successor_that_dies_costs_the_path_nothing(tmp_path: Path) -> None:
    path, node = tmp_path / "s", HttpNode()
    environment = os.environ | {"GPUPOOL_HOME": str(tmp_path / "home")}
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    async with nodes(node):
        given = ("recompute", "proxy", "--unix", str(path), "-p", port, "-n", node.address)
        async with program(COMMAND, *given, env=environment) as first:
            await first.says("listening at", first.out)
            await first.says("node_found")
            waiting = await asyncio.open_unix_connection(path)
            waiting[1].write(
                b"POST /v1/qualities HTTP/1.1\r\nContent-Length: 12\r\n"
            )  # keeps the first one there
            async with program(COMMAND, *given, "--takeover", env=environment) as second:
                await second.says("listening at", second.out)
                await first.says("taken_over")
                second.process.kill()
                await second.process.wait()
                await first.says("successor_gone")
                assert (await ask(path))[0] == 200
            waiting[1].write(b'\r\n{"level": 5}')
            assert b"200 OK" in await waiting[0].readline()
            waiting[1].transport.abort()
            first.process.terminate()
            assert await first.ended() == 0
    assert not path.exists()


async def test_a_path_that_somebody_else_has_by_then_is_left_to_them(tmp_path: Path) -> None:
    path, node = tmp_path / "s", HttpNode()
    async with nodes(node):
        local = LocalListener.at(listen_at_path(path), path)
        core = ProxyCore(ProxySettings(tcp=False, unix=path, nodes=(node.address,)), "inst-test")
        door = Door(core, None, local)
        await door.open()
        with listen_at_path(path, replacing=True):
            inode = path.stat().st_ino
            await door.open()
            assert path.stat().st_ino == inode
            door.close()
            assert path.stat().st_ino == inode
