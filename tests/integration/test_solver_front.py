"""Farmers connect to the solver front, and each of their partial proofs is answered once, by whichever worker can."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web

from gpupool.contracts.feed import EndpointsView, FeedEndpoint
from gpupool.contracts.recompute import SolutionRequest
from gpupool.core.errors import InvalidInputError
from gpupool.core.listening import bind
from gpupool.fleet.endpoints import EndpointHealth
from gpupool.fleet.workloads import Protocol
from gpupool.recompute.solver_front import workers
from gpupool.recompute.solver_front.settings import FrontSettings
from gpupool.recompute.solver_front.wire import NodeType
from polling import eventually
from solver_stage import WorkerDouble, honest, made_identity, proof_of, question, stage


class Gate:
    """Answers when it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, request: SolutionRequest) -> bytes:
        await self.open.wait()
        return await honest(request)


async def lie(_: SolutionRequest) -> bytes:
    return b"wrong"


async def test_a_farmer_is_greeted_and_answered() -> None:
    async with stage(WorkerDouble()) as standing:
        farmer = await standing.farmer().connect()
        heard = await farmer.greet()
        assert (heard.network, heard.protocol, heard.node_type) == ("mainnet", "0.0.38", NodeType.SOLVER)
        assert heard.port == standing.front.port
        assert heard.software.startswith("gpupool-")
        for number in range(3):
            asked = question(number)
            assert await farmer.solve(asked) == proof_of(asked.partial_proof)
        requests = standing.workers[0].asked
        assert [request.chia_rs for request in requests] == ["0.48.0"] * 3
        assert requests[0].plot_id == question(0).plot_id.hex()


async def test_many_farmers_ask_many_things_at_once() -> None:
    async with stage(WorkerDouble(), WorkerDouble(), WorkerDouble()) as standing:
        farmers = [await standing.connected(made_identity(number)) for number in (1, 2, 3)]
        asked = [[question(100 * number + each) for each in range(20)] for number in range(3)]
        for farmer, questions in zip(farmers, asked, strict=True):
            for each in questions:
                await farmer.ask(each)
        for farmer, questions in zip(farmers, asked, strict=True):
            answers = [await farmer.answer() for _ in questions]
            assert {answer.partial_proof for answer in answers} == {each.partial_proof for each in questions}
            assert all(answer.proof == proof_of(answer.partial_proof) for answer in answers)
        assert all(worker.asked for worker in standing.workers)


async def test_what_is_asked_twice_is_worked_on_once() -> None:
    gate = Gate()
    async with stage(WorkerDouble(gate), WorkerDouble(gate)) as standing:
        one, other = await standing.connected(), await standing.connected(made_identity(2))
        asked = question(1)
        for farmer in (one, one, other):
            await farmer.ask(asked)
        await eventually(lambda: sum(farmer.waiting for farmer in standing.front.farmers.connected) == 3)
        gate.open.set()
        for farmer in (one, one, other):
            assert (await farmer.answer()).proof == proof_of(asked.partial_proof)
        assert await other.solve(asked) == proof_of(asked.partial_proof)
        assert sum(len(worker.asked) for worker in standing.workers) == 1


async def test_workers_that_die_cost_nobody_an_answer() -> None:
    gate = Gate()
    async with stage(WorkerDouble(gate), WorkerDouble(gate), WorkerDouble(gate)) as standing:
        farmer = await standing.connected()
        asked = [question(number) for number in range(9)]
        for each in asked:
            await farmer.ask(each)
        await eventually(lambda: sum(len(worker.asked) for worker in standing.workers) == 9)
        for worker in standing.workers[:2]:
            await worker.stop()
        gate.open.set()
        answers = {(await farmer.answer()).partial_proof for _ in asked}
        assert answers == {each.partial_proof for each in asked}


async def test_a_wrong_answer_is_asked_for_again_elsewhere() -> None:
    async with stage(WorkerDouble(lie, seconds=0.5), WorkerDouble(seconds=1.0)) as standing:
        farmer = await standing.connected()
        for number in range(5):
            assert await farmer.solve(question(number)) == proof_of(question(number).partial_proof)
        assert len(standing.workers[0].asked) >= 1
        text = standing.front.counters.text().decode()
        assert f'tries_total{{outcome="wrong",worker="{standing.workers[0].name}"}}' in text


async def test_a_worker_with_another_release_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = structlog.testing.LogCapture()
    monkeypatch.setattr(workers, "log", structlog.wrap_logger(None, processors=[capture]))
    async with stage(WorkerDouble(release="0.53.0"), WorkerDouble()) as standing:
        farmer = await standing.connected()
        for number in range(4):
            assert await farmer.solve(question(number))
        assert standing.workers[0].asked == []
        why = standing.front.workers.unable()[standing.workers[0].name]
        assert "0.53.0" in why
        assert "0.48.0" in why
    told = [line["remedy"] for line in capture.entries if line["event"] == "worker_unusable"]
    assert ["chia_rs==0.48.0" in remedy and "--chia-rs 0.53.0" in remedy for remedy in told] == [True]


@pytest.mark.parametrize("comes_back_first", [True, False])
async def test_a_farmer_that_connects_anew_gets_what_it_asked_before(comes_back_first: bool) -> None:
    gate = Gate()
    async with stage(WorkerDouble(gate)) as standing:
        before, other, asked = (
            await standing.connected(),
            await standing.connected(made_identity(2)),
            question(1),
        )
        await before.ask(asked)
        await eventually(lambda: standing.workers[0].asked)
        assert before.socket is not None
        await before.socket.close()
        await eventually(lambda: len(standing.front.farmers.connected) == 1)
        if comes_back_first:
            again = await standing.connected()
            gate.open.set()
        else:
            gate.open.set()
            await eventually(lambda: standing.front.farmers.kept)
            again = await standing.connected()
        assert (await again.answer()).proof == proof_of(asked.partial_proof)
        assert standing.front.farmers.kept == []
        assert await other.solve(question(2)) == proof_of(question(2).partial_proof)


async def test_workers_may_want_a_token_and_come_and_go_with_the_file(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text("a-token-of-the-tests-only\n")
    guarded = WorkerDouble(token="a-token-of-the-tests-only")
    await guarded.start()
    nodes = tmp_path / "nodes"
    nodes.write_text("")
    try:
        async with stage(nodes=(), nodes_file=nodes) as standing:
            nodes.write_text(f"{guarded.name} token-file={secret}\n")
            await standing.able(1)
            assert await (await standing.connected()).solve(question(1))
            nodes.write_text("# nobody\n")
            await standing.able(0)
    finally:
        await guarded.stop()


async def test_workers_come_from_controls_feed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-the-tests-only\n")
    worker = WorkerDouble()
    await worker.start()
    endpoint = FeedEndpoint(
        id="ep-1",
        placement="pl-1",
        node="node-1",
        workload="wl-1",
        protocol=Protocol.RECOMPUTE,
        address=worker.name,
        models=[],
        state="active",
        health=EndpointHealth.OK,
    )

    async def feed(request: web.Request) -> web.Response:
        if "after" in request.query:
            await asyncio.Event().wait()
        assert request.query["protocol"] == "recompute"
        return web.Response(
            text=EndpointsView(revision=1, workloads=[], endpoints=[endpoint]).model_dump_json()
        )

    app = web.Application()
    app.add_routes([web.get("/v1/endpoints", feed)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    listener = bind("control", "127.0.0.1", 0, "TEST")
    await web.SockSite(runner, listener).start()
    control = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with stage(nodes=(), control_url=control, control_token_file=token) as standing:
            await standing.able(1)
            assert await (await standing.connected()).solve(question(1))
    finally:
        await runner.cleanup()
        await worker.stop()


async def test_a_stop_waits_for_what_was_asked() -> None:
    gate = Gate()
    async with stage(WorkerDouble(gate), drain_seconds=30.0) as standing:
        farmer, asked = await standing.connected(), question(1)
        await farmer.ask(asked)
        await eventually(lambda: standing.workers[0].asked)
        draining = asyncio.create_task(standing.front.drain())
        await eventually(lambda: standing.front.draining)
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await standing.farmer().connect()
        gate.open.set()
        assert (await farmer.answer()).proof == proof_of(asked.partial_proof)
        with pytest.raises(ConnectionError, match="1001"):
            await farmer.receive()
        await draining


async def test_the_operator_sees_farmers_workers_and_counts() -> None:
    async with stage(WorkerDouble(), WorkerDouble(release="0.53.0")) as standing:

        async def page(path: str) -> tuple[int, Any]:
            async with standing.http.get(standing.pages + path) as answer:
                return answer.status, await (answer.text() if path == "/metrics" else answer.json())

        farmer = await standing.connected()
        await farmer.solve(question(1))
        await eventually(lambda: standing.front.farmers.connected[0].waiting == 0)
        assert (await page("/healthz"))[0] == 200
        assert await page("/readyz") == (200, {"status": "ready"})
        view = (await page("/v1/front"))[1]
        assert view["node_id"] == standing.front.identity.node_id
        assert view["farmers"][0] | {"software": "2.7.5", "answered": 1, "waiting": 0} == view["farmers"][0]
        assert [worker["usable"] for worker in view["workers"]] == [True, False]
        text = (await page("/metrics"))[1]
        for line in (
            'gpupool_solver_front_requests_total{outcome="ok"} 1.0',
            "gpupool_solver_front_farmers 1.0",
            "gpupool_solver_front_workers_unusable 1.0",
        ):
            assert line in text
        await standing.workers[0].stop()

        async def noticed() -> bool:
            return (await page("/readyz")) == (503, {"status": "no_workers"})

        await eventually(noticed)


@pytest.mark.parametrize(
    "settings",
    [{}, {"nodes": ("a",), "limit_seconds": 29.0}, {"nodes": ("a",), "drain_seconds": -1.0}],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        FrontSettings(**settings)
