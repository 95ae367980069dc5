"""Workers are processes: what kills or hangs one costs its questions a second try, and nobody else anything."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import worker_engines as engines
from gpupool.core.listening import bind
from gpupool.core.processes import identify
from gpupool.recompute.demo import demo_request, known_proof
from gpupool.recompute.server.crew import ProcessCrew
from gpupool.recompute.server.main import listening
from gpupool.recompute.server.restarts import RestartPolicy
from gpupool.recompute.server.seat import SeatRules
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.tickets import Ticket, WorkerLostError
from polling import eventually

TESTS = Path(engines.__file__).parent
SERVER = """
import sys, threading
from pathlib import Path
from gpupool.core.listening import bind
from gpupool.recompute.server.main import serve
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.staffing import WorkerPlan
import asyncio
plans = [WorkerPlan(name="test", engine="test", factory="worker_engines:obedient", threads=2)]
settings = RecomputeServerSettings(recompute_port=0, recompute_drain_seconds=0.2)
listener = bind("a server", "127.0.0.1", 0, "X")
asyncio.run(serve(settings, listener, plans))
"""


class House:
    """A server in the test's loop with worker processes of its own."""

    def __init__(self, crew: ProcessCrew, url: str, http: aiohttp.ClientSession) -> None:
        self.crew, self.url, self.http = crew, url, http

    async def ask(self, plot: bytes, ms: int = 60_000) -> tuple[int, dict[str, Any]]:
        body = demo_request().model_copy(update={"plot_id": plot.hex()}).model_dump_json()
        headers = {"X-Deadline-Ms": str(ms), "Cache-Control": "no-cache"}
        async with self.http.post(f"{self.url}/v1/proofs", data=body, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def show(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self.http.get(self.url + path) as answer:
            return answer.status, await answer.json(content_type=None)

    def tickets(self) -> list[Ticket]:
        return [ticket for place in self.crew.places for ticket in place.tickets]

    def losses(self) -> int:
        return sum(place.deaths for place in self.crew.places)

    def has_lost(self, processes: int) -> bool:
        return self.crew.places[0].deaths == processes

    def pids(self) -> list[int]:
        return [seat._process.pid for seat in self.crew._seats if seat._process is not None]


@asynccontextmanager
async def house(
    *factories: str,
    threads: int = 1,
    stuck: float = 30.0,
    policy: RestartPolicy | None = None,
    cpu: str | None = None,
) -> AsyncIterator[House]:
    """Serve with one worker a factory; give it once a worker is ready, or none ever can be.

    They are cards; ``cpu``: the factory of a CPU worker, which comes last, so that cards are tried before it.
    """
    plans = [
        WorkerPlan(
            kind="gpu", name=f"card {n}", engine="test", factory=f"worker_engines:{name}", threads=threads
        )
        for n, name in enumerate(factories)
    ]
    if cpu is not None:
        plans.append(WorkerPlan(name="the CPU", engine="test", factory=f"worker_engines:{cpu}", threads=1))
    rules = SeatRules(stuck_seconds=stuck, restarts=policy or RestartPolicy(), log_level="ERROR")
    crew = ProcessCrew(plans, rules)
    settings = RecomputeServerSettings.model_validate({"recompute_port": 0, "recompute_drain_seconds": 0.0})
    listener = bind("a test", "127.0.0.1", 0, "X")
    async with aiohttp.ClientSession() as http:
        try:
            async with listening(settings, "inst-test", listener, crew) as (_, port):
                crew.begin()
                await asyncio.wait({crew.begun}, timeout=60)
                yield House(crew, f"http://127.0.0.1:{port}", http)
        finally:
            await crew.end()
            crew.begun.exception()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where workers note what happened to them."""
    monkeypatch.setenv(engines.FOLDER, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]))
    return tmp_path


async def test_a_worker_that_crashes_costs_its_question_only_a_second_try() -> None:
    async with house("obedient", threads=2) as h:
        before = h.pids()
        assert (await h.ask(engines.ANSWER))[0] == 200
        status, body = await h.ask(engines.SEGFAULT_ONCE)
        assert (status, body["proof"][0]) == (200, f"{known_proof().xs[0]:x}")
        assert h.pids() != before
        _, view = await h.show("/v1/server")
        assert (view["state"], view["devices"][0]["restarts"]) == ("ready", 1)
        assert view["devices"][0]["kind"] == "gpu"


async def test_a_question_that_kills_every_worker_is_answered_503_and_the_next_one_is_served() -> None:
    async with house("obedient") as h:
        status, problem = await h.ask(engines.SEGFAULT)
        assert (status, problem["code"]) == (503, "worker_lost")
        assert "signal 11" in problem["detail"]
        # The second death is followed by a pause of a second, which this one outwaits.
        assert (await h.ask(engines.ANSWER))[0] == 200


async def test_questions_next_to_a_hanging_one_are_served_by_a_fresh_worker() -> None:
    async with house("obedient", threads=2, stuck=2.0) as h:
        hanging = asyncio.create_task(h.ask(engines.HANG_ONCE))
        await eventually(lambda: len(h.tickets()) == 1)
        assert (await h.ask(engines.ANSWER))[0] == 200
        assert (await hanging)[0] == 200
        assert h.losses() == 1
        assert "made no step" in (await h.ask(engines.HANG))[1]["detail"]


async def test_a_frozen_worker_without_work_is_noticed_and_replaced() -> None:
    async with house("obedient", stuck=2.0) as h:
        (pid,) = h.pids()
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: h.losses() == 1 and h.crew.ready)
        assert h.pids() != [pid]
        assert identify(pid) is None
        assert (await h.ask(engines.ANSWER))[0] == 200


async def test_a_client_that_leaves_stops_the_work_in_the_worker(folder: Path) -> None:
    async with house("obedient") as h:
        asking = asyncio.create_task(h.ask(engines.SLOW))
        await eventually(lambda: engines.noted(folder, "slow"))
        asking.cancel()
        await eventually(lambda: engines.noted(folder, "stopped"))
        assert (await h.ask(engines.ANSWER))[0] == 200
        assert h.losses() == 0


async def test_a_deadline_stops_the_work_in_the_worker(folder: Path) -> None:
    async with house("obedient") as h:
        status, problem = await h.ask(engines.SLOW, ms=300)
        assert (status, problem["code"]) == (504, "deadline")
        await eventually(lambda: engines.noted(folder, "stopped"))


async def test_one_card_that_crashes_at_every_start_is_quarantined_and_the_other_one_works_on() -> None:
    policy = RestartPolicy(first_pause=0.01, quarantine_after=3)
    async with house("crashing", "obedient", policy=policy) as h:
        await eventually(lambda: h.crew.places[0].state == "quarantined")
        _, view = await h.show("/v1/server")
        bad, good = view["devices"]
        assert (bad["state"], bad["restarts"], bad["why"]) == ("quarantined", 3, "it ended with signal 9")
        assert good["state"] == "ready"
        assert (await h.show("/readyz"))[0] == 200
        assert [(await h.ask(engines.ANSWER))[0] for _ in range(3)] == [200] * 3


async def all_ready(h: House) -> None:
    await eventually(lambda: all(place.state == "ready" for place in h.crew.places))


@pytest.mark.parametrize("fault", ["fault", "memory", "surprise"])
async def test_what_a_card_fails_at_is_done_elsewhere_and_the_card_gets_a_fresh_process(fault: str) -> None:
    async with house(f"faulty:{fault} once", cpu="slow") as h:
        await all_ready(h)
        assert (await h.ask(engines.ANSWER))[0] == 200
        await eventually(lambda: h.crew.places[0].deaths == 1)
        assert h.crew.places[1].deaths == 0
        await all_ready(h)


async def test_what_the_cpu_fails_at_in_an_unexpected_way_is_told_and_the_next_question_is_answered() -> None:
    async with house(cpu="faulty:surprise once") as h:
        status, problem = await h.ask(engines.ANSWER)
        assert (status, problem["code"]) == (500, "engine_fault")
        assert "RuntimeError" in problem["detail"]
        assert (await h.ask(engines.ANSWER))[0] == 200


async def test_a_card_that_keeps_failing_is_quarantined_and_no_client_notices() -> None:
    policy = RestartPolicy(first_pause=0.01, quarantine_after=3)
    async with house("faulty:fault", cpu="slow", policy=policy) as h:
        for losses in (1, 2, 3):
            await all_ready(h)
            assert (await h.ask(engines.ANSWER))[0] == 200
            await eventually(partial(h.has_lost, losses))
        await eventually(lambda: h.crew.places[0].state == "quarantined")
        _, view = await h.show("/v1/server")
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in view["devices"][0]["why"]
        assert (await h.ask(engines.ANSWER))[0] == 200


async def test_two_cards_may_fail_over_a_question_and_then_it_is_the_cpus(folder: Path) -> None:
    async with house("faulty:fault", "faulty:memory", "obedient", cpu="slow") as h:
        await all_ready(h)
        h.crew.places[2].give_up("it is not there today", useless=True)
        assert (await h.ask(engines.ANSWER))[0] == 200
        assert engines.noted(folder, "asked fault")
        assert engines.noted(folder, "asked memory")


async def test_a_wrong_answer_of_a_card_is_withheld_and_quarantines_it_at_once() -> None:
    async with house("faulty:wrong", cpu="slow") as h:
        await all_ready(h)
        status, body = await h.ask(engines.ANSWER)
        assert (status, body["proof"][0]) == (200, f"{known_proof().xs[0]:x}")
        await eventually(lambda: h.crew.places[0].state == "quarantined")
        assert h.crew.places[0].why == "it gave a wrong answer"


async def test_a_card_that_finds_nothing_where_there_is_a_proof_is_found_out() -> None:
    async with house("faulty:blind", cpu="slow") as h:
        await all_ready(h)
        assert (await h.ask(engines.ANSWER))[0] == 200
        await eventually(lambda: h.crew.places[0].state == "quarantined")
        assert h.crew.places[0].why == "it found no proof where there is one"


async def test_a_card_that_rightly_finds_nothing_is_kept() -> None:
    async with house("faulty:blind", cpu="finding_none") as h:
        await all_ready(h)
        status, problem = await h.ask(engines.ANSWER)
        assert (status, problem["code"]) == (404, "no_proof")
        assert h.crew.places[0].state == "ready"


async def test_without_another_worker_a_fault_of_the_only_card_is_told() -> None:
    policy = RestartPolicy(first_pause=0.01, quarantine_after=2)
    async with house("faulty:fault", policy=policy) as h:
        status, problem = await h.ask(engines.ANSWER)
        assert (status, problem["code"]) == (503, "device_fault")


async def test_with_every_worker_in_quarantine_requests_are_refused_at_once_with_the_reason() -> None:
    policy = RestartPolicy(first_pause=0.01, quarantine_after=1)
    async with house("obedient", policy=policy) as h:
        status, problem = await h.ask(engines.SEGFAULT)
        assert (status, problem["code"]) == (503, "worker_lost")
        status, problem = await h.ask(engines.ANSWER)
        assert (status, problem["code"]) == (503, "worker_lost")
        assert "card 0 (test): it ended with signal 11" in problem["detail"]
        status, problem = await h.show("/readyz")
        assert (status, problem["code"]) == (503, "not_ready")


async def test_a_server_none_of_whose_workers_is_fit_ends_with_their_reason() -> None:
    async with house("unfit") as h:
        with pytest.raises(Exception, match="known question is wrong"):
            h.crew.begun.result()


async def test_a_server_none_of_whose_workers_ever_starts_ends_too() -> None:
    async with house("crashing", policy=RestartPolicy(first_pause=0.01, quarantine_after=2)) as h:
        with pytest.raises(WorkerLostError, match="signal 9"):
            h.crew.begun.result()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@asynccontextmanager
async def process() -> AsyncIterator[tuple[asyncio.subprocess.Process, str, list[int]]]:
    """A server as a process of its own, ready, with its URL and its workers' pids."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        assert child.stdout is not None
        line = (await asyncio.wait_for(child.stdout.readline(), 60)).decode()
        url = f"http://127.0.0.1:{line.split()[-1]}"
        async with aiohttp.ClientSession() as http:

            async def ready() -> bool:
                async with http.get(f"{url}/readyz") as answer:
                    return answer.status == 200

            await eventually(ready)
        yield child, url, children_of(child.pid)
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def test_workers_end_with_a_server_that_is_killed_even_frozen_ones() -> None:
    async with process() as (child, _, pids):
        workers = [identify(pid) for pid in pids]
        assert len(workers) == 1
        os.kill(pids[0], signal.SIGSTOP)
        child.kill()
        await child.wait()
        await eventually(lambda: not any(worker is not None and worker.alive() for worker in workers))


async def test_a_signal_to_the_whole_group_lets_the_server_end_its_workers_in_good_order() -> None:
    async with process() as (child, _, pids):
        os.killpg(child.pid, signal.SIGINT)
        assert await child.wait() == 0
        assert all(identify(pid) is None for pid in pids)


async def test_a_worker_without_a_server_ends_at_the_end_of_its_input() -> None:
    """What holds everywhere, also where no kernel ends children with their parent."""
    program = (
        "import sys; from gpupool.recompute.server.worker import main; sys.platform = 'elsewhere'; main()"
    )
    arguments = ("--engine", "worker_engines:obedient", "--threads", "1", "--parent", "0")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    size = int.from_bytes(await asyncio.wait_for(child.stdout.readexactly(4), 60), "little")
    assert json.loads(await child.stdout.readexactly(size)) == ["Ready", {}]
    child.stdin.close()
    assert await asyncio.wait_for(child.wait(), 60) == 0


def test_the_server_itself_never_loads_an_engine() -> None:
    program = (
        "import sys, gpupool.recompute.server.main as m;"
        "print(sorted({'numba', 'numpy', 'llvmlite', 'pyopencl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
