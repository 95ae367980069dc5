"""A farmer is connected to the solver front, once or again after each of its restarts, and never against somebody."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from typer.testing import CliRunner

from certificates import Authority
from gpupool.cli.main import app as command
from gpupool.core.errors import EnvironmentProblemError, GpupoolError, InvalidInputError
from gpupool.core.listening import bind
from gpupool.recompute.solver_front.attaching import Attachment, Standing, keep_attached
from gpupool.recompute.solver_front.farmer_rpc import FarmerRpc, farmer_node_id, rpc_context
from polling import eventually

SOLVER = ("10.1.2.3", 8666)


@dataclass
class FarmerDouble:
    """The RPC of a farmer, as far as this needs it."""

    root: Path
    solvers: list[dict[str, Any]] = field(default_factory=list)
    connected: list[dict[str, Any]] = field(default_factory=list)
    """What it was told to connect to."""
    refuses: bool = False
    drops: bool = False
    """The solver ends each connection at once."""
    odd: str | None = None
    """What it answers instead of its connections."""
    port: int = 0

    async def connections(self, request: web.Request) -> web.Response:
        if self.odd is not None:
            return web.Response(text=self.odd)
        assert await request.json() == {"node_type": 8}
        return web.json_response({"connections": self.solvers, "success": True})

    async def connect(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.connected.append(asked)
        self.solvers.clear()
        if self.refuses:
            return web.json_response({"success": False, "error": "Could not connect to solver"})
        if not self.drops:
            self.solvers.append(row(f"{len(self.connected):064x}", "192.168.0.9", asked["port"]))
        return web.json_response({"success": True})


def row(node_id: str, host: str, port: int) -> dict[str, Any]:
    shown = {"type": 8, "node_id": f"0x{node_id}", "peer_host": host, "peer_server_port": port}
    return shown | {"creation_time": 1.0, "peer_port": port, "bytes_read": 0}


@pytest.fixture(scope="module")
def chia_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Chia folder with the certificates of a farm."""
    made, root = tmp_path_factory.mktemp("farm"), tmp_path_factory.mktemp("chia")
    authority = Authority(made)
    pair = authority.issue("daemon", host="chia.net")
    for name, source in (
        ("ca/private_ca.crt", authority.certificate),
        ("daemon/private_daemon.crt", pair.certificate),
        ("daemon/private_daemon.key", pair.key),
        ("farmer/public_farmer.crt", pair.certificate),
    ):
        target = root / "config" / "ssl" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(0o600)
        target.write_bytes(source.read_bytes())
    return root


@asynccontextmanager
async def farmer(root: Path, port: int = 0) -> AsyncIterator[FarmerDouble]:
    double = FarmerDouble(root)
    folder = root / "config" / "ssl"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "daemon/private_daemon.crt", folder / "daemon/private_daemon.key")
    context.load_verify_locations(folder / "ca/private_ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.add_routes(
        [web.post("/get_connections", double.connections), web.post("/connect_to_solver", double.connect)]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listener = bind("a farmer", "127.0.0.1", port, "TEST")
    double.port = listener.getsockname()[1]
    await web.SockSite(runner, listener, ssl_context=context).start()
    try:
        yield double
    finally:
        await runner.cleanup()


@asynccontextmanager
async def attachment(double: FarmerDouble) -> AsyncIterator[Attachment]:
    async with aiohttp.ClientSession() as session:
        rpc = FarmerRpc(("127.0.0.1", double.port), rpc_context(double.root), session)
        yield Attachment(rpc, SOLVER)


async def test_a_farmer_without_a_solver_is_connected_and_then_left_alone(chia_root: Path) -> None:
    async with farmer(chia_root) as double, attachment(double) as attached:
        first = await attached.look()
        assert (first.state, first.connected_now, first.node_id) == ("attached", True, f"{1:064x}")
        assert double.connected == [{"host": "10.1.2.3", "port": 8666}]
        again = await attached.look()
        assert (again.state, again.connected_now) == ("attached", False)
        assert len(double.connected) == 1
        double.solvers.clear()
        assert (await attached.look()).connected_now
        assert len(double.connected) == 2


async def test_a_farmer_that_has_this_solver_is_not_disturbed(chia_root: Path) -> None:
    async with farmer(chia_root) as double, attachment(double) as attached:
        double.solvers.append(row("ab" * 32, *SOLVER))
        assert (await attached.look()).state == "attached"
        assert double.connected == []


async def test_another_solver_is_replaced_at_first_and_never_later(chia_root: Path) -> None:
    async with farmer(chia_root) as double, attachment(double) as attached:
        double.solvers.append(row("ab" * 32, "127.0.0.1", 8666))
        assert (await attached.look()).connected_now
        double.solvers[:] = [row("cd" * 32, "10.9.9.9", 8666)]
        standing = await attached.look()
        assert (standing.state, standing.node_id) == ("elsewhere", "cd" * 32)
        assert len(double.connected) == 1


@pytest.mark.parametrize("how", ["refuses", "drops"])
async def test_what_the_farmer_cannot_do_is_told_with_a_remedy(chia_root: Path, how: str) -> None:
    async with farmer(chia_root) as double, attachment(double) as attached:
        setattr(double, how, True)
        standing = await attached.look()
        assert standing.state == "refused"
        assert "node id" in (standing.remedy or "")


async def test_it_goes_on_through_a_restart_of_the_farmer(chia_root: Path) -> None:
    heard: list[Standing] = []
    stop = asyncio.Event()
    async with aiohttp.ClientSession() as session:
        async with farmer(chia_root) as double:
            port = double.port
            rpc = FarmerRpc(("127.0.0.1", port), rpc_context(chia_root), session)
            watching = asyncio.create_task(keep_attached(Attachment(rpc, SOLVER), heard.append, stop, 0.05))
            await eventually(lambda: [standing.state for standing in heard] == ["attached"])
        await eventually(lambda: [standing.state for standing in heard] == ["attached", "unreachable"])
        async with farmer(chia_root, port) as double:
            await eventually(lambda: [standing.state for standing in heard][2:] == ["attached"])
            assert len(double.connected) == 1
            stop.set()
            await watching


@pytest.mark.parametrize("answer", ["", "[]", "{", '{"connections": 7}', '{"connections": [{"type": 8}]}'])
async def test_answers_that_are_none_are_told(chia_root: Path, answer: str) -> None:
    async with farmer(chia_root) as double, attachment(double) as attached:
        double.odd = answer
        assert (await attached.look()).state == "unreachable"
        assert double.connected == []


def test_a_folder_without_certificates_is_told(tmp_path: Path, chia_root: Path) -> None:
    with pytest.raises(EnvironmentProblemError, match="private authority"):
        rpc_context(tmp_path)
    assert farmer_node_id(tmp_path) is None
    assert len(farmer_node_id(chia_root) or "") == 64


async def test_the_command_connects_once_and_says_how_it_stands(chia_root: Path) -> None:
    def attach(port: int, *more: str) -> Any:
        words = ["solver", "attach", "--once", "--farmer", f"127.0.0.1:{port}", "--chia-root", str(chia_root)]
        return CliRunner().invoke(command, [*words, "--solver", "10.1.2.3", *more])

    async with farmer(chia_root) as double:
        shown = await asyncio.to_thread(attach, double.port)
        assert shown.exit_code == 0, shown.output
        assert "is connected to the solver" in shown.output
        assert farmer_node_id(chia_root) in shown.output
        told = json.loads((await asyncio.to_thread(attach, double.port, "--json")).output)
        assert (told["state"], told["farmer_node_id"]) == ("attached", farmer_node_id(chia_root))
        double.refuses = True
        double.solvers.clear()
        failed = await asyncio.to_thread(attach, double.port)
        assert isinstance(failed.exception, GpupoolError)
        assert failed.exception.code == "farmer_refused"
    away = await asyncio.to_thread(attach, double.port)
    assert isinstance(away.exception, GpupoolError)
    assert away.exception.message.endswith("cannot be asked: Connection refused.")
    assert "--farmer" in (away.exception.remedy or "")
    wrong = attach(8447)
    assert isinstance(wrong.exception, InvalidInputError)
    assert "8559" in wrong.exception.remedy
