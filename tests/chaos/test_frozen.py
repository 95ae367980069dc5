"""A process that stops moving and comes back: hung is told apart from dead, and nothing is placed twice."""

import signal
import time
from pathlib import Path
from typing import Any

import httpx

from light_pool import LightPool, endpoints

SILENCE_SECONDS = 2


async def test_a_frozen_agent_is_unreachable_and_comes_back_as_it_was(tmp_path: Path) -> None:
    async with LightPool(tmp_path, GPUPOOL_CONTROL_SILENCE_SECONDS=str(SILENCE_SECONDS)) as pool:
        await pool.start()
        await pool.deploy()
        before = await pool.active()
        processes = pool.processes()
        pool.agent.send(signal.SIGSTOP)
        try:
            await pool.until(lambda: node_state(pool, "unreachable"), "an unreachable node")
            assert [item["health"] for item in (await pool.get("/v1/endpoints"))["endpoints"]] == ["unknown"]
            assert placements(await pool.workload()) == placements(before)
            (address,) = endpoints(before)
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(f"http://{address}/")).status_code == 200
        finally:
            pool.agent.send(signal.SIGCONT)
        await pool.until(lambda: node_state(pool, "ready"), "a ready node")
        assert placements(await pool.active()) == placements(before)
        assert pool.processes() == processes
        await pool.check_sound()


async def test_a_frozen_control_blames_nobody_for_its_own_sleep(tmp_path: Path) -> None:
    async with LightPool(tmp_path, GPUPOOL_CONTROL_SILENCE_SECONDS=str(SILENCE_SECONDS)) as pool:
        await pool.start()
        await pool.deploy()
        before = await pool.active()
        pool.control.send(signal.SIGSTOP)
        try:
            frozen = time.monotonic()
            await pool.until(lambda: time.monotonic() > frozen + 2 * SILENCE_SECONDS, "silence enough")
        finally:
            pool.control.send(signal.SIGCONT)
        assert placements(await pool.active()) == placements(before)
        events = await pool.get("/v1/events?limit=1000")
        assert [item for item in events if item["data"].get("reason") == "silent"] == []
        await pool.check_sound()


async def node_state(pool: LightPool, state: str) -> bool:
    """Tell whether control has the node in a state."""
    return [node["state"] for node in await pool.get("/v1/nodes")] == [state]


def placements(view: dict[str, Any]) -> list[str]:
    """Return the ids of a workload's placements, final ones included."""
    return [item["id"] for item in view["placements"]]
