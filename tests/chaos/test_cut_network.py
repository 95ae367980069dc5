"""The cable between control and a node is pulled and put back: nothing is placed twice, nothing that runs is harmed."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from cut_network import Cable
from light_pool import LightPool, endpoints

SILENCE_SECONDS = 4


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as laid:
        yield laid


@pytest_asyncio.fixture
async def pool(tmp_path: Path, cable: Cable) -> AsyncIterator[LightPool]:
    """Run control here and its one node at the cable's other end."""
    silence = {"GPUPOOL_CONTROL_SILENCE_SECONDS": str(SILENCE_SECONDS)}
    async with LightPool(tmp_path, GPUPOOL_CONTROL_HOST=cable.here, **silence) as running:
        running.move_to(cable.here)
        running.agent.env |= {"GPUPOOL_NODE_ADDRESS": cable.there}
        running.agent.prefix = cable.prefix
        await running.start()
        yield running


async def node_state(pool: LightPool, state: str) -> bool:
    return [node["state"] for node in await pool.get("/v1/nodes")] == [state]


async def answers(view: dict[str, Any]) -> bool:
    (address,) = endpoints(view)
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://{address}/")).status_code == 200


def ids(view: dict[str, Any]) -> list[str]:
    return [item["id"] for item in view["placements"]]


async def test_what_was_wished_meanwhile_holds_once_the_cable_is_back(pool: LightPool, cable: Cable) -> None:
    await pool.deploy("kept")
    await pool.deploy("given-up")
    kept, processes = await pool.active("kept"), pool.processes()
    await pool.active("given-up")
    assert await answers(kept)
    cable.pull()
    await pool.until(lambda: node_state(pool, "unreachable"), "a node out of reach")
    await pool.delete("given-up")
    await pool.deploy("meanwhile")
    assert (await pool.workload("meanwhile"))["live"] == 0, "nothing new goes where nobody answers"
    assert ids(await pool.workload("kept")) == ids(kept)
    cable.put_back()
    await pool.active("meanwhile")
    again = await pool.active("kept")
    assert ids(again) == ids(kept)
    assert await answers(again)
    await pool.check_sound()
    assert set(processes) & set(pool.processes()), "what was kept was started anew"


async def test_a_control_that_dies_meanwhile_is_found_again(pool: LightPool, cable: Cable) -> None:
    """No reset ever reaches the node's open connections: it must notice by itself that they are dead."""
    await pool.deploy()
    before, processes = await pool.active(), pool.processes()
    cable.pull()
    await pool.until(lambda: node_state(pool, "unreachable"), "a node out of reach")
    pool.control.kill()
    await pool.until(lambda: pool.try_once("GET", "/readyz"), "control again")
    cable.put_back()
    assert ids(await pool.active()) == ids(before)
    assert pool.processes() == processes
    await pool.check_sound()


async def test_a_short_cut_is_no_event(pool: LightPool, cable: Cable) -> None:
    await pool.deploy()
    before = await pool.active()
    for _ in range(5):
        cable.pull()
        assert (await pool.get("/v1/nodes"))[0]["state"] == "ready"
        cable.put_back()
    assert ids(await pool.active()) == ids(before)
    kinds = [event["kind"] for event in await pool.get("/v1/events?limit=1000")]
    assert "node.unreachable" not in kinds
    await pool.check_sound()
