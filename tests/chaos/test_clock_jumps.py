"""The wall clock of real processes jumps by minutes, forward and back: nothing that runs or was promised is lost.

What single decisions make of such a jump is tested with a fake clock, beside them.
"""

import asyncio
import time
from contextlib import ExitStack
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from control_stage import a_client
from gpupool.contracts.recompute import ProofReply
from gpupool.contracts.recompute_client import RecomputeClient
from gpupool.core.keys import MAX_SKEW_SECONDS
from gpupool.recompute.demo import demo_request, known_proof
from light_pool import LightPool, Member
from polling import eventually
from turned_clock import TurnedClock
from up_run import free_ports

JUMP = 3 * MAX_SKEW_SECONDS
"""Far beyond what a signed request may be off."""
PROOF_SECONDS = 110.0
WORKING = "gpupool_recompute_running 1.0"


async def test_the_machine_s_clock_jumps_and_nothing_else_moves(tmp_path: Path) -> None:
    clock = TurnedClock(tmp_path / "clock")
    async with LightPool(tmp_path, **clock.variables) as pool:
        await pool.start()
        await pool.deploy()
        first, processes = await pool.active(), pool.processes()
        for number, ahead in enumerate((JUMP, -JUMP)):
            clock.turn(ahead)
            await follows(pool, clock)
            await pool.deploy(f"after-{number}")
            await pool.active(f"after-{number}")
        pool.agent.kill()  # the next one finds runs that began at times that have not come yet, by its clock
        assert placed(await pool.active()) == placed(first)
        assert set(processes) <= set(pool.processes())
        await pool.check_sound()
        events = await pool.get("/v1/events?limit=1000")
        assert [event["kind"] for event in events].count("placement.failed") == 0
        assert pool.control.starts == 1, pool.logs()


@pytest.mark.parametrize("ahead", [JUMP, -JUMP])
async def test_a_node_whose_clock_alone_jumps_is_back_once_its_clock_is(tmp_path: Path, ahead: int) -> None:
    clock = TurnedClock(tmp_path / "clock")
    async with LightPool(tmp_path, GPUPOOL_CONTROL_SILENCE_SECONDS="3") as pool:
        pool.agent.env |= clock.variables
        await pool.start()
        await pool.deploy()
        before, processes = await pool.active(), pool.processes()
        clock.turn(ahead)
        await pool.until(lambda: refused(pool), "a refusal")
        await pool.until(lambda: left_out(pool), "a node out of reach")
        await pool.deploy("meanwhile")
        await pool.deploy("given-up")
        await pool.delete("given-up")
        assert (await pool.workload("meanwhile"))["active"] == 0
        clock.turn(0)
        await pool.active("meanwhile")
        assert placed(await pool.active()) == placed(before)
        assert set(processes) <= set(pool.processes())
        assert len(pool.processes()) == 2
        assert (pool.control.starts, pool.agent.starts) == (1, 1), pool.logs()
        await pool.check_sound()


async def test_a_proof_that_is_under_way_keeps_its_deadline(tmp_path: Path) -> None:
    """Deadlines are spans: the clock that jumps under a recompute server neither cuts nor stretches them."""
    clock, port = TurnedClock(tmp_path / "clock"), free_ports(1)[0]
    env = {"GPUPOOL_HOME": str(tmp_path / "home"), **clock.variables}
    log = tmp_path / "recompute.log"
    server = Member("recompute", ["recompute", "serve", "--port", str(port), "-r", "1"], env, log)
    with ExitStack() as stack:
        stack.callback(server.kill)
        server.start()
        client = stack.enter_context(RecomputeClient(f"http://127.0.0.1:{port}"))

        def ask() -> ProofReply:
            return client.recover_proof(demo_request(), seconds=PROOF_SECONDS)

        await eventually(lambda: look(port, "/readyz", '"ready"'), PROOF_SECONDS, "the server")
        for ahead in (JUMP, -JUMP):
            asking = asyncio.create_task(asyncio.to_thread(ask))
            await eventually(lambda: look(port, "/metrics", WORKING), PROOF_SECONDS, "the work")
            clock.turn(ahead)
            reply = await asking
            assert (reply.numbers(), reply.checked) == (known_proof().xs, "challenge")
        assert server.runs, log.read_text()


async def follows(pool: LightPool, clock: TurnedClock) -> None:
    """Return once control's own clock shows the jump."""

    async def look() -> bool:
        reply = await pool.try_once("GET", "/healthz")
        if reply is None:
            return False
        shown = parsedate_to_datetime(reply.headers["Date"]).timestamp()
        return abs(shown - time.time() - clock.ahead) < MAX_SKEW_SECONDS / 2

    await pool.until(look, "the jump, in control")


def placed(workload: dict[str, Any]) -> list[str]:
    """Return the ids of a workload's placements, ended ones too."""
    return [item["id"] for item in workload["placements"]]


def refused(pool: LightPool) -> bool:
    """Tell whether control has told the agent that its clock is off."""
    return "Clock skew" in pool.agent.log.read_text()


async def left_out(pool: LightPool) -> bool:
    """Tell whether control counts the node as out of reach."""
    return [node["state"] for node in await pool.get("/v1/nodes")] == ["unreachable"]


async def look(port: int, path: str, words: str) -> bool:
    """Tell whether a server's answer has the words in it."""
    try:
        async with a_client(f"http://127.0.0.1:{port}", {}) as client:
            return words in (await client.get(path)).text
    except httpx.TransportError:
        return False
