"""The miner API, asked as `chutes-miner-cli` asks: its recorded requests are taken once, and nothing else is."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

import chutes_cli
from chutes_cli import ADDRESS, SEED, Sent
from control_stage import ScriptedAgent, Stage, cpu_of, gpu_of, stage
from gpupool.control.http.guard import MINER_BURST
from gpupool.control.http.limits import MAX_MINER_BODY_BYTES
from gpupool.core.clock import SystemClock
from gpupool.fleet.jobs import Job, JobState
from gpupool.fleet.placements import PlacementState
from gpupool.validators.chutes.management import NONCE_SECONDS, management_headers
from gpupool.validators.chutes.signing import NONCE, SIGNATURE, signed_headers
from gpupool.validators.hotkeys import Hotkey

ALICE = Hotkey(bytes.fromhex(SEED.removeprefix("0x")))
BOB = Hotkey(bytes(32))
NODE = {"name": "tested", "validator": ADDRESS, "hourly_cost": 1.25, "gpu_short_ref": "l4"}


class Clock(SystemClock):
    """The machine's clock, which a test turns to the time of a recorded request."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        """Return the turned time."""
        return super().now() + self.ahead

    @contextmanager
    def turned_to(self, unix: int) -> Iterator[None]:
        """Let it be that time."""
        self.ahead = datetime.fromtimestamp(unix, UTC) - super().now()
        try:
            yield
        finally:
            self.ahead = timedelta()


class Miner:
    """A stage with a hotkey let in, and whoever asks it."""

    def __init__(self, on: Stage, clock: Clock, folder: Path) -> None:
        self.on, self.clock, self.folder = on, clock, folder
        self.anonymous = on.anonymous()

    async def let_in(self, key: Hotkey = ALICE, name: str = "alice", role: str = "operator") -> None:
        """Let a hotkey ask."""
        body = {"address": key.address, "name": name, "role": role}
        reply = await self.on.client.post("/v1/hotkeys", json=body)
        assert reply.status_code == 201, reply.text

    async def node(self, name: str = "tested") -> ScriptedAgent:
        """Let a machine with one L4 join, ready."""
        agent = ScriptedAgent(self.on, name, folder=self.folder)
        assert (await agent.join()).status_code == 200
        await agent.inventory(cpu_of(name, 32 * 1024), gpu_of(name))
        await self.on.until(f"/v1/nodes/{name}", lambda node: node["state"] == "ready")
        return agent

    async def deployed(self, agent: ScriptedAgent) -> str:
        """Return the one live deployment of the chute demo on the agent's GPU, active."""
        found = await self.on.until("/v1/placements", _planned)
        placement_id = _planned(found)[0]
        await agent.say(placement_id, PlacementState.ACTIVE, port=31000)
        return placement_id

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: Hotkey = ALICE,
        ahead: float = 0,
        **changed: str,
    ) -> httpx.Response:
        """Send what the hotkey signs, with headers changed after signing (underscores for hyphens)."""
        content = None if body is None else json.dumps(body).encode()
        headers = management_headers(key, time.time() + ahead, body=content)
        headers |= {name.replace("_", "-"): value for name, value in changed.items()}
        if content is not None:
            headers["Content-Type"] = "application/json"
        return await self.anonymous.request(method, path, content=content, headers=headers)

    async def replay(self, sent: Sent, path: str | None = None) -> httpx.Response:
        """Send a recorded request, to another path if need be, at its time."""
        with self.clock.turned_to(sent.at):
            return await self.anonymous.request(
                sent.method, path or sent.path, headers=sent.headers, content=sent.body or None
            )

    async def audit(self) -> list[tuple[str, str]]:
        """Return what was asked for, and by whom."""
        return [(e["kind"], e["data"]["by"]) for e in await self.on.get("/v1/events", asked=True, limit=1000)]


def _planned(found: list[dict[str, Any]]) -> list[str]:
    return [placement["id"] for placement in found if placement["state"] == "planned"]


@pytest_asyncio.fixture
async def miner(tmp_path: Path) -> AsyncIterator[Miner]:
    clock = Clock()
    async with stage(tmp_path, clock) as on:
        asked = Miner(on, clock, tmp_path)
        async with asked.anonymous:
            yield asked


def told(reply: httpx.Response) -> list[str]:
    """Return the messages of a stream, read as the client reads it."""
    assert reply.status_code == 200, reply.text
    return [json.loads(line[6:])["message"] for line in reply.text.splitlines() if line.strip()]


async def test_every_recorded_request_of_the_client_does_what_it_says(miner: Miner) -> None:
    await miner.let_in()
    agent = await miner.node()
    await miner.on.deploy(gpu_count=1)
    sent = {
        name: [one for one in chutes_cli.recorded() if one.command == name] for name in chutes_cli.COMMANDS
    }

    assert (
        told(await miner.replay(sent["add-node"][0]))[-1] == "tested is ready: l4 at $1.25 an hour and GPU."
    )
    first = await miner.deployed(agent)
    [server] = (await miner.replay(sent["local-inventory"][0])).json()
    assert (server["name"], server["gpu_count"], server["hourly_cost"]) == ("tested", 1, 1.25)
    assert (server["memory_per_gpu"], server["ip_address"], server["status"]) == (22, "127.0.0.1", "ready")
    [deployment] = server["deployments"]
    assert (deployment["active"], deployment["port"], deployment["chute"]["name"]) == (True, 31000, "demo")
    assert deployment["gpus"] == [gpu["gpu_id"] for gpu in server["gpus"]]
    assert server["gpus"][0]["device_info"]["processors"] == 58

    for command, locked in (("lock", True), ("unlock", False)):
        shown = (await miner.replay(sent[command][0])).json()
        assert (shown["name"], shown["locked"]) == ("tested", locked)

    purged = (await miner.replay(sent["purge-deployments"][0])).json()
    [one] = purged["deployments_purged"]
    assert (purged["status"], one["deployment_id"], one["gpu_count"]) == ("initiated", first, 1)
    await agent.say(first, PlacementState.ENDED)

    second = await miner.deployed(agent)
    of_one = sent["purge-deployment"][0]
    purged = (await miner.replay(of_one, of_one.path.replace("DEPLOYMENT", second))).json()
    assert [one["deployment_id"] for one in purged["deployments_purged"]] == [second]
    await agent.say(second, PlacementState.ENDED)

    third = await miner.deployed(agent)
    preflight, purge = sent["purge-deployment of a node"]
    assert (await miner.replay(preflight)).json() == {"jobs": []}
    assert [one["deployment_id"] for one in (await miner.replay(purge)).json()["deployments_purged"]] == [
        third
    ]
    await agent.say(third, PlacementState.ENDED)

    preflight, delete = sent["delete-node"]
    assert (await miner.replay(preflight)).json() == {"jobs": []}
    assert (await miner.replay(delete)).json()["status"] == "started"
    assert await miner.on.get("/v1/nodes") == []

    kinds = {kind for kind, by in await miner.audit() if by == "alice@127.0.0.1"}
    assert kinds >= {"node.added", "node.locked", "node.unlocked", "placement.draining", "node.removed"}


async def test_a_machine_that_has_not_joined_is_answered_with_its_line(miner: Miner) -> None:
    await miner.let_in()
    [sent] = [one for one in chutes_cli.recorded() if one.command == "add-node"]
    reply = await miner.replay(sent)
    detail = reply.json()["detail"]
    assert reply.status_code == 404
    assert f"gpupool agent run --control {miner.on.url} --name tested" in detail
    assert '"' not in detail
    token = detail.partition("GPUPOOL_JOIN_TOKEN=")[2].split()[0]
    agent = ScriptedAgent(miner.on, "tested", folder=miner.folder)
    body = {"name": "tested", "public_key": agent.key.public_text, "address": "127.0.0.1"}
    async with miner.on.anonymous(token) as client:
        assert (await client.post("/v1/agent/join", json=body)).status_code == 200


async def test_what_is_refused_is_in_the_log_without_the_token(
    miner: Miner, capsys: pytest.CaptureFixture[str]
) -> None:
    await miner.let_in()
    await miner.ask("GET", "/servers/", key=BOB)
    detail = (await miner.ask("POST", "/servers/", NODE)).json()["detail"]
    token = detail.partition("GPUPOOL_JOIN_TOKEN=")[2].split()[0]
    logged = "".join(capsys.readouterr())
    assert logged.count("miner.refused") == 2
    assert BOB.address in logged
    assert "has not joined this pool" in logged
    assert token not in logged


@asynccontextmanager
async def adding(miner: Miner) -> AsyncIterator[AsyncIterator[str]]:
    """Begin to add a machine whose inventory is not in, and yield what is told afterwards."""
    content = json.dumps(NODE).encode()
    headers = management_headers(ALICE, time.time(), body=content) | {"Content-Type": "application/json"}
    async with miner.anonymous.stream("POST", "/servers/", content=content, headers=headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = (json.loads(line[6:])["message"] async for line in reply.aiter_lines() if line.strip())
        assert "waiting for its inventory" in await anext(lines)
        yield lines


async def test_adding_waits_for_a_machine_and_says_so(miner: Miner) -> None:
    await miner.let_in()
    agent = ScriptedAgent(miner.on, "tested", folder=miner.folder)
    await agent.join()
    async with adding(miner) as lines:
        await agent.inventory(cpu_of("tested"), gpu_of("tested"), gpu_of("tested", 1))
        assert [line async for line in lines][-1] == "tested is ready: l4 at $1.25 an hour and GPU."
    assert (await miner.on.get("/v1/nodes/tested"))["hourly_usd"] == 2.5


async def test_adding_ends_in_words_where_the_machine_turns_out_to_be_another(miner: Miner) -> None:
    await miner.let_in()
    agent = ScriptedAgent(miner.on, "tested", folder=miner.folder)
    await agent.join()
    async with adding(miner) as lines:
        await agent.inventory(cpu_of("tested"))
        assert "has no GPU, not l4" in [line async for line in lines][-1]


async def test_adding_ends_where_the_machine_is_removed(miner: Miner) -> None:
    await miner.let_in()
    await ScriptedAgent(miner.on, "tested", folder=miner.folder).join()
    async with adding(miner) as lines:
        assert (await miner.on.client.delete("/v1/nodes/tested")).status_code == 204
        assert [line async for line in lines][-1].startswith("ERROR: ")


@pytest.mark.parametrize(
    ("changed", "status", "word"),
    [
        ({"gpu_short_ref": "h100"}, 400, "has 1 x l4, not h100"),
        ({"gpu_short_ref": "l5"}, 400, "no model l5"),
        ({"validator": ADDRESS[:-1] + "Z"}, 400, "no SS58 address"),
        ({"hourly_cost": -1}, 400, "hourly_cost"),
        ({"hourly_cost": 1e9}, 400, "hourly_cost"),
        ({"name": "Not A Name"}, 400, "name"),
    ],
)
async def test_what_does_not_fit_the_machine_changes_nothing(
    miner: Miner, changed: dict[str, Any], status: int, word: str
) -> None:
    await miner.let_in()
    await miner.node()
    reply = await miner.ask("POST", "/servers/", NODE | changed)
    assert (reply.status_code, word in reply.json()["detail"]) == (status, True), reply.text
    assert (await miner.on.get("/v1/nodes/tested"))["hourly_usd"] is None


async def test_what_is_not_known_is_not_found(miner: Miner) -> None:
    await miner.let_in()
    for method, path in (
        ("GET", "/servers/other/delete_preflight"),
        ("GET", "/servers/other/lock"),
        ("DELETE", "/servers/other"),
        ("DELETE", "/servers/other/deployments"),
        ("DELETE", "/deployments/pl-other"),
    ):
        reply = await miner.ask(method, path)
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), path


async def test_a_request_is_taken_once_to_whatever_path_and_whichever_run_of_control(tmp_path: Path) -> None:
    headers = management_headers(ALICE, time.time())
    async with stage(tmp_path) as on, on.anonymous() as client:
        await Miner(on, Clock(), tmp_path).let_in()
        assert (await client.get("/servers/", headers=headers)).status_code == 200
        reply = await client.get("/servers/", headers=headers)
        assert (reply.status_code, "sent before" in reply.json()["detail"]) == (401, True)
    async with stage(tmp_path) as on, on.anonymous() as client:
        shouted = headers | {SIGNATURE: headers[SIGNATURE].upper()}
        for again in (headers, shouted):
            reply = await client.delete("/deployments/purge", headers=again)
            assert (reply.status_code, "sent before" in reply.json()["detail"]) == (401, True)


async def test_of_many_copies_at_once_one_is_taken(miner: Miner) -> None:
    await miner.let_in()
    headers = management_headers(ALICE, time.time())
    asked = (miner.anonymous.get("/servers/", headers=headers) for _ in range(20))
    statuses = [reply.status_code for reply in await asyncio.gather(*asked)]
    assert sorted(statuses) == [200, *[401] * 19]


@pytest.mark.parametrize(
    ("ahead", "word"), [(-NONCE_SECONDS, "s old"), (NONCE_SECONDS + 2, "s ahead"), (-1e6, "s old")]
)
async def test_a_clock_that_is_off_is_told_by_how_much(miner: Miner, ahead: float, word: str) -> None:
    await miner.let_in()
    reply = await miner.ask("GET", "/servers/", ahead=ahead)
    problem = reply.json()
    assert (reply.status_code, problem["code"], word in problem["detail"]) == (401, "clock_skew", True)
    assert "set-ntp" in problem["remedy"]
    assert (await miner.ask("GET", "/servers/", ahead=2 - NONCE_SECONDS)).status_code == 200
    assert (await miner.ask("GET", "/servers/", ahead=NONCE_SECONDS - 2)).status_code == 200


async def test_a_wrong_signature_opens_nothing(miner: Miner) -> None:
    await miner.let_in()
    now = time.time()
    right = management_headers(ALICE, now)
    other = management_headers(BOB, now)
    body = json.dumps(NODE).encode()
    with_body = management_headers(ALICE, now, body=body) | {"Content-Type": "application/json"}
    validators_own = signed_headers(ALICE, now, purpose="management")
    later = str(int(right[NONCE]) + 1)
    for headers, method, path, content in (
        (right | {SIGNATURE: other[SIGNATURE]}, "GET", "/servers/", None),
        (right | {NONCE: later}, "GET", "/servers/", None),
        (right | {SIGNATURE: validators_own[SIGNATURE]}, "GET", "/servers/", None),
        (right | {SIGNATURE: "00" * 64}, "GET", "/servers/", None),
        (right, "POST", "/servers/", body),
        (with_body, "POST", "/servers/", body.replace(b"1.25", b"0.25")),
        (with_body, "POST", "/servers/", b""),
        (with_body, "DELETE", "/deployments/purge", None),
    ):
        reply = await miner.anonymous.request(method, path, headers=headers, content=content)
        assert (reply.status_code, "does not fit" in reply.json()["detail"]) == (401, True), (
            path,
            reply.text,
        )
    reply = await miner.anonymous.request("DELETE", "/servers/a", headers=right, content=b"{}")
    assert (reply.status_code, "cannot cover" in reply.json()["detail"]) == (400, True)
    # None of these has used it up.
    assert (await miner.anonymous.get("/servers/", headers=right)).status_code == 200


async def test_a_head_that_is_not_whole_is_refused(miner: Miner) -> None:
    await miner.let_in()
    right = management_headers(ALICE, time.time())
    for name in right:
        left = {key: value for key, value in right.items() if key != name}
        reply = await miner.anonymous.get("/servers/", headers=left)
        assert (reply.status_code, name in reply.json()["detail"]) == (401, True)
    twice = [*right.items(), (NONCE, right[NONCE])]
    assert (await miner.anonymous.get("/servers/", headers=twice)).status_code == 401
    for changed in (
        {"X-Chutes-Validator": BOB.address},
        {NONCE: "soon"},
        {NONCE: "1" * 13},
        {NONCE: "-1"},
        {NONCE: "\u0661"},
        dict.fromkeys(("X-Chutes-Miner", "X-Chutes-Validator"), ADDRESS + "'; --"),
        {SIGNATURE: "zz" * 64},
        {SIGNATURE: right[SIGNATURE][2:]},
    ):
        encoded = [(key.encode(), value.encode()) for key, value in (right | changed).items()]
        reply = await miner.anonymous.get("/servers/", headers=encoded)
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized"), changed


async def test_only_hotkeys_that_were_let_in_may_ask_and_no_longer_than_they_are(miner: Miner) -> None:
    reply = await miner.ask("GET", "/servers/")
    assert (reply.status_code, "may not ask" in reply.json()["detail"]) == (401, True)
    assert "gpupool hotkey add" in reply.json()["remedy"]
    await miner.let_in()
    assert (await miner.ask("GET", "/servers/")).status_code == 200
    assert (await miner.ask("GET", "/servers/", key=BOB)).status_code == 401
    assert (await miner.on.client.delete("/v1/hotkeys/alice")).status_code == 204
    assert (await miner.ask("GET", "/servers/")).status_code == 401
    assert (await miner.on.client.delete("/v1/hotkeys/alice")).status_code == 404
    assert [kind for kind, _ in await miner.audit()] == ["hotkey.added", "hotkey.removed"]


async def test_a_viewer_reads_and_changes_nothing(miner: Miner) -> None:
    await miner.let_in(role="viewer")
    await miner.node()
    assert (await miner.ask("GET", "/servers/")).status_code == 200
    assert (await miner.ask("GET", "/servers/tested/delete_preflight")).status_code == 200
    for method, path, body in (
        ("GET", "/servers/tested/lock", None),
        ("GET", "/servers/tested/unlock", None),
        ("DELETE", "/servers/tested", None),
        ("DELETE", "/servers/tested/deployments", None),
        ("DELETE", "/deployments/purge", None),
        ("DELETE", "/deployments/pl-1", None),
        ("POST", "/servers/", NODE),
    ):
        reply = await miner.ask(method, path, body)
        assert (reply.status_code, "takes operator" in reply.json()["detail"]) == (403, True), path
    assert (await miner.on.get("/v1/nodes/tested"))["locked"] is False


async def test_a_hotkey_opens_the_miner_api_only(miner: Miner) -> None:
    await miner.let_in()
    for path in ("/v1/nodes", "/v1/tokens", "/v1/hotkeys"):
        assert (await miner.ask("GET", path)).status_code == 401
    assert (await miner.anonymous.get("/servers/")).status_code == 401
    # Tokens open it as far as their roles reach.
    token = (await miner.on.client.post("/v1/tokens", json={"name": "eve", "role": "viewer"})).json()["token"]
    async with miner.on.anonymous(token) as client:
        assert (await client.get("/servers/")).status_code == 200
        assert (await client.get("/servers/tested/lock")).status_code == 403


@pytest.mark.parametrize(
    ("wish", "status"),
    [
        ({"address": ADDRESS, "name": "other"}, 409),
        ({"address": BOB.address, "name": "alice"}, 409),
        ({"address": ADDRESS[:-1] + "Z", "name": "bob"}, 400),
        ({"address": "0x" + "ab" * 32, "name": "bob"}, 400),
        ({"address": BOB.address, "name": "bob", "role": "admin"}, 400),
        ({"address": BOB.address, "name": "Bob"}, 400),
    ],
)
async def test_a_hotkey_is_let_in_once_and_bad_wishes_change_nothing(
    miner: Miner, wish: dict[str, str], status: int
) -> None:
    await miner.let_in()
    assert (await miner.on.client.post("/v1/hotkeys", json=wish)).status_code == status
    assert [key["name"] for key in await miner.on.get("/v1/hotkeys")] == ["alice"]


async def test_too_many_requests_and_too_large_ones_are_refused(miner: Miner) -> None:
    await miner.let_in()
    reply = await miner.ask("POST", "/servers/", {**NODE, "more": "x" * MAX_MINER_BODY_BYTES})
    assert (reply.status_code, reply.json()["code"]) == (413, "too_large")
    replies = [await miner.anonymous.get("/servers/") for _ in range(2 * MINER_BURST)]
    busy = [reply for reply in replies if reply.status_code == 429]
    assert busy
    assert int(busy[0].headers["Retry-After"]) >= 1
    assert (await miner.on.client.get("/v1/nodes")).status_code == 200


async def test_jobs_are_named_before_they_break_and_spared_by_purging_all(miner: Miner) -> None:
    await miner.let_in()
    agent = await miner.node()
    await miner.on.deploy(gpu_count=1)
    placement_id = await miner.deployed(agent)
    [shown] = await miner.on.get("/v1/placements")
    async with miner.on.pool.change() as change:
        now = change.at
        await change.writer.put_job(
            Job(
                id="job-1",
                workload_id=shown["workload_id"],
                placement_id=placement_id,
                state=JobState.RUNNING,
                created_at=now,
                changed_at=now,
            )
        )
    [job] = (await miner.ask("GET", "/servers/tested/delete_preflight")).json()["jobs"]
    assert (job["job_id"], job["deployment_id"]) == ("job-1", placement_id)
    assert (await miner.ask("DELETE", "/deployments/purge")).json()["deployments_purged"] == []
    purged = (await miner.ask("DELETE", "/servers/tested/deployments")).json()["deployments_purged"]
    assert [one["deployment_id"] for one in purged] == [placement_id]
    assert (await miner.ask("DELETE", f"/deployments/{placement_id}")).json()["deployments_purged"] == []
