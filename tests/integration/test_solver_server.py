"""A recompute server solves partial proofs of v2 plots with Chia's own library, beside its look-ups for v1 plots."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import aiohttp
import pytest

import v2_plots
from gpupool.contracts.recompute import RecomputeServerView, SolutionRequest
from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.listening import bind
from gpupool.recompute.demo import known_proof, proof_request
from gpupool.recompute.server import main, solving
from gpupool.recompute.server.app import RecomputeServer
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.solver_engine import PooledSolver, checked_engine
from gpupool.recompute.server.work import WorkQueue
from gpupool.solvers.questions import SolveQuestion
from gpupool.solvers.solver import Solver
from polling import eventually
from proxy_program import COMMAND, program
from recompute_stage import PATIENCE, ScriptedEngine, ThreadCrew
from solver_stage import stage as front_stage

RELEASE = version("chia_rs")
SOLUTIONS = "/v1/solutions"


class Stage:
    """A server whose look-ups are scripted and whose solver is real."""

    def __init__(
        self,
        url: str,
        http: aiohttp.ClientSession,
        lookups: ScriptedEngine,
        server: RecomputeServer | None = None,
    ) -> None:
        self.url, self.http, self.lookups, self._server = url, http, lookups, server

    @property
    def lookups_queue(self) -> WorkQueue:
        assert self._server is not None
        return self._server._queue

    @property
    def solutions_queue(self) -> WorkQueue:
        assert self._server is not None
        assert self._server._solver is not None
        return self._server._solver.queue

    async def post(self, path: str, body: str, **headers: str) -> tuple[int, dict[str, Any]]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(self.url + path, data=body, headers=named) as answer:
            return answer.status, await answer.json(content_type=None)

    async def view(self) -> RecomputeServerView:
        async with self.http.get(self.url + "/v1/server") as answer:
            return RecomputeServerView.model_validate_json(await answer.read())


@asynccontextmanager
async def stage(**settings: object) -> AsyncIterator[Stage]:
    given = RecomputeServerSettings.model_validate({"recompute_port": 0, "recompute_threads": 1, **settings})
    lookups = ScriptedEngine()
    crew = ThreadCrew(lookups, 1)
    with bind("the recompute server", "127.0.0.1", 0, "GPUPOOL_RECOMPUTE") as listener:
        async with (
            main.listening(given, "inst-test", listener, crew) as (server, port),
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2 * PATIENCE)) as http,
        ):
            yield Stage(f"http://127.0.0.1:{port}", http, lookups, server)
    crew.close()


def asking(question: SolveQuestion, **changes: object) -> str:
    request = SolutionRequest(
        partial_proof=question.partial_proof.hex(),
        plot_id=question.plot_id.hex(),
        k=question.k,
        strength=question.strength,
        chia_rs=RELEASE,
    )
    return request.model_copy(update=changes).model_dump_json()


async def test_partial_proofs_are_solved_in_both_forms_and_the_work_is_told() -> None:
    question, solver = v2_plots.questions()[0], Solver(1)
    async with stage() as server:
        before = (await server.view()).solver
        assert before is not None
        assert (before.chia_rs, before.state, before.workers) == (RELEASE, "idle", 1)
        assert [rate.strength for rate in before.rates] == list(range(2, 18))
        assert not any(rate.measured for rate in before.rates)
        status, answer = await server.post(SOLUTIONS, asking(question))
        assert status == 200, answer
        proof = bytes.fromhex(answer["proof"])
        await asyncio.to_thread(solver.check, question, proof)
        binary = {"Accept": "application/octet-stream"}
        async with server.http.post(server.url + SOLUTIONS, data=asking(question), headers=binary) as same:
            assert await same.read() == proof
        after = await server.view()
        assert after.solver is not None
        assert (after.solver.state, after.solver.queue.running) == ("ready", 0)
        text = await (await server.http.get(server.url + "/metrics")).text()
        assert 'gpupool_recompute_requests_total{kind="solve",outcome="ok"} 2.0' in text
        assert 'engine="chia_rs",kind="solve",level="2"} 1.0' in text
        await _refusals(server, question)
    solver.close()


async def _refusals(server: Stage, question: SolveQuestion) -> None:
    """What cannot be solved is refused in words, and the next question is answered."""
    for changes, status, code in (
        ({"chia_rs": "0.48.0"}, 422, "wrong_release"),
        ({"plot_id": "00" * 32}, 404, "unsolved"),
        ({"k": 27}, 422, "unsupported"),
        ({"strength": 18}, 422, "unsupported"),
    ):
        heard = await server.post(SOLUTIONS, asking(question, **changes))
        assert (heard[0], heard[1]["code"]) == (status, code), heard
    for body in ("", "{}", "[" * 5000, asking(question).replace("partial_proof", "partial")):
        assert (await server.post(SOLUTIONS, body))[0] == 400
    # 28 with strength 17 takes hours: it is refused at once, not begun.
    hopeless = asking(question, k=28, strength=17)
    heard = await server.post(SOLUTIONS, hopeless, X_Deadline_Ms="2000")
    assert (heard[0], heard[1]["code"]) == (504, "deadline")
    late = await server.post(SOLUTIONS, asking(question, k=28, strength=8), X_Deadline_Ms="1")
    assert late[0] == 504
    assert (await server.post(SOLUTIONS, asking(v2_plots.questions()[1])))[0] == 200


async def test_lookups_and_solutions_count_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "usable_cores", lambda: 1)
    question = v2_plots.questions()[0]
    async with stage() as server:
        assert server.lookups_queue.slowdown() == server.solutions_queue.slowdown() == 1.0
        server.lookups.gate.clear()
        body = proof_request(known_proof(), 3).model_dump_json()
        lookup = asyncio.create_task(server.post("/v1/proofs", body, Cache_Control="no-cache"))
        await eventually(lambda: server.lookups_queue.running)
        assert server.solutions_queue.slowdown() == pytest.approx(1 / solving.SHARE)
        slow = asking(question, k=28, strength=4)
        solution = asyncio.create_task(server.post(SOLUTIONS, slow, X_Deadline_Ms="30000"))
        await eventually(lambda: server.solutions_queue.running)
        assert server.lookups_queue.slowdown() == pytest.approx(1 / (1 - solving.SHARE))
        server.lookups.gate.set()
        assert (await lookup)[0] == 200
        solution.cancel()
        await eventually(lambda: not server.solutions_queue.running, what="the end of what nobody waits for")
        assert server.lookups_queue.slowdown() == 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_real_lookups_meet_their_deadlines_beside_a_solution(tmp_path: Any) -> None:
    """Real kernels, and a solution that takes all cores for some seconds."""
    environment = os.environ | {"GPUPOOL_HOME": str(tmp_path)}
    async with program(COMMAND, "recompute", "serve", "-p", "0", "-r", "0", env=environment) as serving:
        await serving.listening()
        port = next(line for line in serving.out if "listening" in line).rsplit(" ", 1)[1]
        async with aiohttp.ClientSession() as http:
            server = Stage(f"http://127.0.0.1:{port}", http, ScriptedEngine())

            async def ready() -> bool:
                async with http.get(server.url + "/readyz") as answer:
                    return answer.status == 200

            await eventually(ready, 120)
            solving_now = asyncio.create_task(
                server.post(
                    SOLUTIONS, asking(v2_plots.questions()[0], k=28, strength=2), X_Deadline_Ms="120000"
                )
            )
            body = proof_request(known_proof(), 3).model_dump_json()
            asked = 0
            while not solving_now.done() or asked < 20:
                status, _ = await server.post("/v1/proofs", body, X_Deadline_Ms="5000")
                assert status == 200
                asked += 1
            # Fragments of a small plot are no partial proof of a large one: all the work, and no proof.
            assert (await solving_now)[0] == 404


@pytest.mark.parametrize("why", ["switched off", "not installed"])
async def test_without_a_solver_it_says_so(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "not installed":
        monkeypatch.setattr(main, "installed_release", lambda: None)
    settings = {"recompute_solvers": 0} if why == "switched off" else {}
    async with stage(**settings) as server:
        assert (await server.view()).solver is None
        status, problem = await server.post(SOLUTIONS, asking(v2_plots.questions()[0]))
        assert (status, problem["code"]) == (422, "no_solver")


async def test_a_solver_that_was_asked_for_starts_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(recompute_solvers=2) as server:

        async def ready() -> bool:
            view = (await server.view()).solver
            return view is not None and (view.state, view.workers) == ("ready", 2)

        await eventually(ready)
    monkeypatch.setattr(main, "installed_release", lambda: None)
    with pytest.raises(EnvironmentProblemError, match="not installed"):
        async with stage(recompute_solvers=2):
            pass


async def test_a_server_with_tokens_wants_one_for_solutions_too(tmp_path: Any) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("a-token-of-the-tests-only\n")
    async with stage(recompute_token_file=tokens) as server:
        assert (await server.post(SOLUTIONS, asking(v2_plots.questions()[0])))[0] == 401


def test_the_engine_tells_what_it_can_and_how_long_it_takes() -> None:
    question, engine = v2_plots.questions()[0], checked_engine("1")
    assert isinstance(engine, PooledSolver)
    assert engine.capability().version == RELEASE
    reckoned = engine.seconds(question)
    assert engine.solve(question, lambda: None)
    assert engine.seconds(question) != reckoned
    engine.close()


async def test_a_farmer_is_answered_by_a_real_server_through_the_front() -> None:
    async with stage() as server:
        node = server.url.removeprefix("http://")
        async with front_stage(nodes=(node,), release=RELEASE) as front:
            await front.able(1)
            assert front.front.checker.sees_quality
            farmer = await front.connected()
            for question in v2_plots.questions()[:2]:
                proof = await farmer.solve(question)
                assert len(proof) == question.proof_bytes
