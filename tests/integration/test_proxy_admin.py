"""A running proxy and its commands: who may give them, what they do to traffic, and what a restart keeps."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from gpupool.cli.main import app
from gpupool.core.errors import GpupoolError
from gpupool.recompute.proxy import alarms, operations
from gpupool.recompute.proxy.admin_http import BODY_LIMIT, MOST_CONNECTIONS
from gpupool.recompute.proxy.admin_record import FILE, AdminRecord
from gpupool.recompute.proxy.alarms import Hold
from gpupool.recompute.proxy.alerting import Alerting
from gpupool.recompute.proxy.operations import State
from gpupool.recompute.proxy.proxying import ProxyCore
from gpupool.recompute.proxy.report import Report
from gpupool.recompute.proxy.settings import ProxySettings
from gpupool.recompute.proxy.state_folder import open_folder
from gpupool.recompute.proxy.tallies import REGULAR_MINUTES
from polling import eventually
from proxy_stage import FrameNode, HttpNode, Node, ProxyStage, nodes, proxy

PATIENCE = 40.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of the test's own, and a proxy that looks around often and logs apart from what commands say."""
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(operations, "LOOK_SECONDS", 0.05)
    with capture_logs():
        yield tmp_path / "home"


class Operator:
    """Types commands."""

    def __init__(self, stage: ProxyStage) -> None:
        self.stage = stage

    async def run(self, *words: str) -> tuple[int, str]:
        """Return exit code and output of ``gpupool recompute …``."""
        result = await asyncio.to_thread(CliRunner().invoke, app, ["recompute", *words])
        if isinstance(result.exception, GpupoolError):
            return result.exception.exit_code, result.exception.message
        return result.exit_code, result.output

    async def json(self, *words: str) -> Any:
        code, output = await self.run(*words, "--json")
        assert code == 0, output
        return json.loads(output)

    async def states(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in (await self.json("nodes", "list"))["nodes"]}


@asynccontextmanager
async def operated(*behind: Node | str, **settings: object) -> AsyncIterator[Operator]:
    async with proxy(*behind, keep_state=True, **settings) as stage:
        await eventually(
            lambda: AdminRecord.read(open_folder(stage.port)), PATIENCE, "the record of the admin interface"
        )
        yield Operator(stage)


def record_of(operator: Operator) -> AdminRecord:
    record = AdminRecord.read(open_folder(operator.stage.port))
    assert record is not None
    return record


async def raw(record: AdminRecord, data: bytes) -> tuple[int, dict[str, Any]]:
    """Return status and body of what the admin interface answers to bytes."""
    reader, writer = await asyncio.open_connection(record.host, record.port)
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
    finally:
        writer.transport.abort()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def request(line: str, token: str | None, body: bytes = b"", length: int | None = None) -> bytes:
    authorization = f"Authorization: Bearer {token}\r\n" if token is not None else ""
    size = len(body) if length is None else length
    return f"{line} HTTP/1.1\r\n{authorization}Content-Length: {size}\r\n\r\n".encode() + body


class TestBorder:
    async def test_the_record_is_its_owners_and_goes_with_the_proxy(self, home: Path) -> None:
        async with operated("127.0.0.1:1") as operator:
            folder = home / "proxies" / str(operator.stage.port)
            assert (folder / FILE).stat().st_mode & 0o777 == 0o600
            assert folder.stat().st_mode & 0o777 == 0o700
            assert record_of(operator).host == "127.0.0.1"
        assert not (folder / FILE).exists()

    async def test_a_port_given_by_chance_leaves_nothing_behind(self, home: Path) -> None:
        async with operated("127.0.0.1:1") as operator:
            await operator.run("nodes", "add", "127.0.0.1:2")
        assert list((home / "proxies").iterdir()) == []

    async def test_without_the_token_there_is_nothing(self) -> None:
        async with operated("127.0.0.1:1") as operator:
            record = record_of(operator)
            for token in (None, "", "x", record.token[:-1]):
                for line in ("GET /v1/nodes", "POST /v1/nodes", "GET /v1/nothing"):
                    status, body = await raw(record, request(line, token))
                    assert (status, body["code"]) == (401, "unauthorized")
            assert (await raw(record, request("GET /v1/top", record.token)))[0] == 200

    async def test_the_port_of_the_clients_takes_no_commands(self) -> None:
        async with operated("127.0.0.1:1") as operator:
            token = record_of(operator).token
            for path in ("/v1/top", "/v1/clients", "/v1/alerts"):
                status, _, _ = await operator.stage.http("GET", path, authorization=f"Bearer {token}")
                assert status == 404
            body = b'{"action": "remove", "node": "127.0.0.1:1"}'
            status, _, _ = await operator.stage.http(
                "POST", "/v1/nodes", body, authorization=f"Bearer {token}"
            )
            assert status == 405
            assert list(operator.stage.core.directory.nodes) == ["127.0.0.1:1"]

    async def test_every_input_has_a_limit(self) -> None:
        async with operated("127.0.0.1:1") as operator:
            record = record_of(operator)
            post, token = "POST /v1/nodes", record.token
            for data, status in (
                (b"GET /v1/top HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 413),
                (request(post, token, length=BODY_LIMIT + 1), 413),
                (request(post, token, length=10**12), 413),
                (request(post, token, b"{"), 400),
                (request(post, token, b"[" * 50_000), 400),
                (request(post, token, b"[]"), 400),
                (request(post, token, b'{"action": "add", "node": 1}'), 400),
                (request(post, token, b'{"action": ["add"], "node": "a"}'), 400),
                (request(post, token, b'{"action": "add", "node": "a", "added": false}'), 400),
                (b"\r\n\r\n", 400),
                (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
                (request("GET /v1/nodes/history?name=" + "x" * 500, token), 404),
                (request("PUT /v1/nodes", token), 404),
            ):
                assert (await raw(record, data))[0] == status, data[:80]

    async def test_connections_that_say_nothing_do_not_shut_others_out_for_ever(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gpupool.recompute.proxy.admin_http._READ_SECONDS", 0.5)
        async with operated("127.0.0.1:1") as operator:
            record = record_of(operator)
            idle = [await asyncio.open_connection(record.host, record.port) for _ in range(MOST_CONNECTIONS)]

            async def served() -> bool:
                with contextlib.suppress(ConnectionError):
                    return (await raw(record, request("GET /v1/top", record.token)))[0] == 200
                return False

            await eventually(served, PATIENCE, "an answer")
            for _, writer in idle:
                writer.transport.abort()


class TestNodes:
    async def test_a_node_is_added_drained_and_taken_out_under_traffic(self) -> None:
        first, second = FrameNode(), FrameNode()
        async with nodes(first, second), operated(first) as operator:
            stage = operator.stage
            await stage.known(1)
            assert await operator.run("nodes", "add", second.address, "--weight", "2") == (
                0,
                f"{second.address} is added (state unknown, weight 2).\n",
            )
            await stage.known(2)
            assert (await operator.run("nodes", "drain", first.address))[0] == 0
            seen = len(first.seen)
            for number in range(20):
                assert await stage.ask(b"%d" % number) == b"re:%d" % number
            assert len(first.seen) == seen
            assert (await operator.states())[first.address] == "draining"
            assert (await operator.run("nodes", "undrain", first.address))[0] == 0
            assert (await operator.run("nodes", "remove", second.address))[0] == 0
            served = len(second.seen)
            assert await stage.ask(b"again") == b"re:again"
            assert len(second.seen) == served
            assert await operator.states() == {first.address: "live"}

    async def test_what_is_acknowledged_survives_a_restart(self, free_port: int) -> None:
        first, second = FrameNode(), FrameNode()
        async with nodes(first, second):
            async with operated(first, "127.0.0.1:1", port=free_port) as operator:
                await operator.run("nodes", "add", second.address, "--sockets", "3")
                await operator.run("nodes", "weight", first.address, "0.5")
                await operator.run("nodes", "remove", "127.0.0.1:1")
            async with operated(first, "127.0.0.1:1", port=free_port) as operator:
                found = await operator.json("nodes", "list")
                rows = {row["name"]: row for row in found["nodes"]}
                assert rows.keys() == {first.address, second.address}
                assert rows[first.address]["weight"] == 0.5
                assert rows[second.address]["sources"] == ["command"]
                assert found["removed"] == [{"name": "127.0.0.1:1", "sources": ["arguments"]}]
                await operator.stage.known(2)
                views = operator.stage.core.frames.pool.view(0.0)
                assert {view.name: view.limit for view in views}[second.address] == 3
                table = (await operator.run("nodes", "list"))[1]
                assert "removed" in table
                assert "reset or add brings it back" in table

    async def test_exit_codes_tell_the_truth(self, free_port: int) -> None:
        async with operated("127.0.0.1:1") as operator:
            for words, code in (
                (("add", "127.0.0.1:1"), 5),
                (("add", "http://x"), 2),
                (("add", "x", "--weight", "0"), 2),
                (("drain", "nobody"), 4),
                (("weight", "127.0.0.1:1"), 2),
                (("list", "--history", "nobody"), 4),
                (("list", "--port", str(free_port)), 8),
            ):
                assert (await operator.run("nodes", *words))[0] == code, words

    async def test_a_proxy_is_not_added_to_itself(self) -> None:
        async with operated("127.0.0.1:1") as operator:
            code, words = await operator.run("nodes", "add", f"127.0.0.1:{operator.stage.port}")
            assert code == 2
            assert "is this proxy itself" in words
            assert (await operator.states()).keys() == {"127.0.0.1:1"}

    async def test_of_two_proxies_one_is_named(self) -> None:
        async with operated("127.0.0.1:1") as one, operated("127.0.0.1:2") as two:
            code, message = await one.run("nodes", "list")
            assert code == 5
            assert str(one.stage.port) in message
            assert str(two.stage.port) in message
            assert (await one.run("nodes", "list", "--port", str(two.stage.port)))[0] == 0

    async def test_a_record_that_a_crash_left_is_no_proxy(self) -> None:
        async with operated("127.0.0.1:1") as operator:
            kept = record_of(operator)
        kept.write(open_folder(kept.public_port))
        assert (await operator.run("top", "--once"))[0] == 8


class TestLooking:
    async def test_top_shows_nodes_and_clients(self) -> None:
        node = FrameNode()
        async with nodes(node), operated(node, "127.0.0.1:1") as operator:
            await operator.stage.known(1)
            for _ in range(5):
                await operator.stage.ask(b"x")
            found = await operator.json("top", "--once")
            rows = {row["name"]: row for row in found["nodes"]}
            assert (rows[node.address]["state"], rows[node.address]["answered"]) == ("live", 5)
            assert rows["127.0.0.1:1"]["state"] == "unreachable"
            assert [(row["address"], row["requests"]) for row in found["clients"]] == [("127.0.0.1", 5)]
            assert found["proxy"]["requests"] == 5
            code, screen = await operator.run("top", "--once")
            assert code == 0
            assert node.address in screen
            assert "Busiest clients (1 known, 0 silent)" in screen

    async def test_clients_and_their_history_survive_a_restart(self, free_port: int) -> None:
        node = FrameNode()
        async with nodes(node):
            async with operated(node, port=free_port) as operator:
                await operator.stage.known(1)
                await operator.stage.ask(b"x")
            async with operated(node, port=free_port) as operator:
                await operator.stage.known(1)
                await operator.stage.ask(b"y")
                (client,) = (await operator.json("clients"))["clients"]
                assert (client["address"], client["requests"], client["protocols"]) == (
                    "127.0.0.1",
                    2,
                    ["frames"],
                )
                assert client["first"] < client["last"]
                (point,) = (await operator.json("clients", "--history", "127.0.0.1"))["hours"]
                assert point["requests"] == 1
                (answered,) = (await operator.json("nodes", "list", "--history", node.address))["hours"]
                assert answered["requests"] == 1
                assert "Hours" in (await operator.run("clients", "--history", "127.0.0.1"))[1]
                assert (await operator.run("clients", "--silent"))[0] == 0

    async def test_who_went_silent_is_told(self) -> None:
        node = FrameNode()
        async with nodes(node), operated(node, silent_seconds=1.0) as operator:
            await operator.stage.known(1)
            await operator.stage.ask(b"x")
            operator.stage.core.tallies.clients["127.0.0.1"].minutes = REGULAR_MINUTES

            async def silent() -> bool:
                code, output = await operator.run("clients", "--silent")
                return code == 5 and "SILENT" in output

            await eventually(silent, PATIENCE, "silence")

            async def told() -> bool:
                code, output = await operator.run("alerts", "list")
                return code == 5 and "client_silent" in output

            await eventually(told, PATIENCE, "the alert")

    async def test_a_client_whose_protocol_nobody_speaks_is_seen(self) -> None:
        node = HttpNode()
        async with nodes(node), operated(node) as operator:
            await operator.stage.known(1)
            await operator.stage.exchange(b"\x04\x00\x00\x00abcd")
            (client,) = (await operator.json("clients"))["clients"]
            assert (client["refused"], client["requests"]) == (1, 0)
            metrics = (await operator.stage.http("GET", "/metrics"))[2].decode()
            assert "gpupool_proxy_requests_refused_total 1" in metrics

    async def test_names_come_only_when_asked_for(self) -> None:
        node = FrameNode()
        async with nodes(node), operated(node) as operator:
            await operator.stage.known(1)
            await operator.stage.ask(b"x")
            assert "name" not in (await operator.json("clients"))["clients"][0]
            assert "name" in (await operator.json("clients", "--names"))["clients"][0]


class TestAlerts:
    async def test_a_node_that_dies_and_comes_back_is_told_to_a_program(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(alarms, "GROUP_SECONDS", 0.0)
        monkeypatch.setattr(alarms, "DISTANCE_SECONDS", 0.0)
        monkeypatch.setattr(alarms, "HOLDS", dict.fromkeys(alarms.HOLDS, Hold(0.0, 0.0)))
        out, hook = tmp_path / "out", tmp_path / "hook"
        hook.write_text(f'#!/bin/sh\ncat >> "{out}"\n')
        hook.chmod(0o700)
        out.touch()
        node, other = FrameNode(), FrameNode()

        def told() -> set[tuple[str, str, str]]:
            messages = [json.loads(line) for line in out.read_text().splitlines()]
            return {(e["alert"], e["subject"], e["status"]) for m in messages for e in m["events"]}

        async with nodes(node, other), operated(node, other, alert_command=hook) as operator:
            await operator.stage.known(2)
            await node.stop()

            async def down() -> bool:
                await operator.stage.ask(b"x")
                return ("node_down", node.address, "firing") in told()

            await eventually(down, PATIENCE, "the alert")
            await node.start()
            await eventually(
                lambda: ("node_down", node.address, "over") in told(), PATIENCE, "the recovery note"
            )
            code, output = await operator.run("alerts", "test")
            assert code == 0
            assert "taken" in output
            assert ("test", "this proxy", "firing") in told()

    async def test_a_hook_that_fails_is_told_and_harms_nothing(self, tmp_path: Path) -> None:
        hook = tmp_path / "hook"
        hook.write_text("#!/bin/sh\necho no route >&2\nexit 7\n")
        hook.chmod(0o700)
        node = FrameNode()
        async with nodes(node), operated(node, alert_command=hook) as operator:
            await operator.stage.known(1)
            code, output = await operator.run("alerts", "test")
            assert code == 1
            assert "status 7: no route" in output
            assert await operator.stage.ask(b"x") == b"re:x"

    async def test_without_hooks_a_test_says_so(self) -> None:
        async with operated("127.0.0.1:1") as operator:
            assert (await operator.run("alerts", "test"))[0] == 5


class TestState:
    async def test_one_proxy_after_another_has_the_state_folder(self, tmp_path: Path) -> None:
        settings = ProxySettings(nodes=("127.0.0.1:1",))
        before, after = (state(ProxyCore(settings, f"inst-{n}"), tmp_path) for n in (1, 2))
        try:
            await before.look()
            await after.look()
            assert AdminRecord.read(tmp_path).instance_id == "inst-1"  # type: ignore[union-attr]
            before._core.draining = True
            await before.look()
            await after.look()
            assert AdminRecord.read(tmp_path).instance_id == "inst-2"  # type: ignore[union-attr]
            before._core.draining = False
            await before.look()
            assert AdminRecord.read(tmp_path).instance_id == "inst-2"  # type: ignore[union-attr]
            await after.close()
            await before.look()
            assert AdminRecord.read(tmp_path).instance_id == "inst-1"  # type: ignore[union-attr]
        finally:
            await before.close()
            await after.close()

    @pytest.mark.parametrize("port", [-5, 99_999_999])
    async def test_a_record_with_no_address_is_taken_for_none(self, tmp_path: Path, port: int) -> None:
        AdminRecord(instance_id="inst-0", pid=1, public_port=1, host="127.0.0.1", port=port, token="x").write(
            tmp_path
        )
        after = state(ProxyCore(ProxySettings(nodes=("127.0.0.1:1",)), "inst-1"), tmp_path)
        try:
            await after.look()
            assert AdminRecord.read(tmp_path).instance_id == "inst-1"  # type: ignore[union-attr]
        finally:
            await after.close()

    async def test_without_a_state_folder_it_serves_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "file" / "home"))
        node = FrameNode()
        async with nodes(node), proxy(node, keep_state=True) as stage:
            await stage.known(1)
            assert await stage.ask(b"x") == b"re:x"


def state(core: ProxyCore, folder: Path) -> State:
    return State(core, folder, Report(core), Alerting([], {}), 1)
