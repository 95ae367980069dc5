"""A report that its own node has overtaken: it left before what control knows by now, and must not undo that."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from control_stage import cpu_of
from fleet_samples import NOON, new_database
from gpupool.contracts.agent_link import JoinRequest, Report
from gpupool.contracts.spec import SpecFile
from gpupool.control.joining import join
from gpupool.control.pool import Pool
from gpupool.control.reconciling import Reconciler
from gpupool.control.reporting import take_report
from gpupool.control.wanting import deploy
from gpupool.core.clock import FakeClock
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import PlacementState
from gpupool.store.open import open_store
from model_agent import ModelAgent


@pytest_asyncio.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    store = await open_store(new_database(tmp_path))
    yield Pool(store, FakeClock(NOON))
    await store.close()


async def joined(pool: Pool) -> ModelAgent:
    """Return an agent whose node is known."""
    agent = ModelAgent("node-a", [cpu_of("node-a")])
    async with pool.change() as change:
        agent.node_id = (
            await join(change, JoinRequest(name="node-a", public_key="A" * 43 + "=", address="h"))
        ).id
    return agent


async def send(pool: Pool, agent: ModelAgent, report: Report) -> bool:
    """Deliver a report; return whether its session is known."""
    known = (await take_report(pool, agent.node_id, report)).session_known
    if known:
        agent.taken(report)
    return known


async def run_one(pool: Pool, agent: ModelAgent) -> str:
    """Have one placement run on the node, and return its id."""
    async with pool.change() as change:
        await deploy(change, SpecFile.model_validate({"name": "demo", "command": ["serve"]}), pool.catalog)
    await Reconciler(pool).settle()
    async with pool.store.read() as reader:
        for command in await reader.commands(agent.node_id):
            agent.handle(command)
    (name,) = agent.instances
    for _ in range(2):
        agent.go_on(name)
    assert await send(pool, agent, agent.report())
    return name


@pytest.mark.parametrize("leaving", [False, True])
async def test_an_overtaken_inventory_does_not_end_what_was_started_since(pool: Pool, leaving: bool) -> None:
    agent = await joined(pool)
    overtaken = agent.connect()
    if leaving:
        overtaken = agent.farewell()
        agent.restart()
    assert await send(pool, agent, agent.connect())
    name = await run_one(pool, agent)
    assert not (await take_report(pool, agent.node_id, overtaken)).session_known
    snapshot = await pool.snapshot()
    assert [(one.id, one.state) for one in snapshot.live] == [(name, PlacementState.ACTIVE)]
    assert snapshot.nodes[agent.node_id].session == agent.session


async def test_a_node_that_has_left_is_not_brought_back_by_its_own_older_words(pool: Pool) -> None:
    agent = await joined(pool)
    overtaken = agent.connect()
    assert await send(pool, agent, agent.connect())
    assert await send(pool, agent, agent.farewell())
    assert not (await take_report(pool, agent.node_id, overtaken)).session_known
    node = (await pool.snapshot()).nodes[agent.node_id]
    assert (node.state, node.session) == (NodeState.UNREACHABLE, None)


async def test_after_a_boot_names_of_sessions_begin_anew(pool: Pool) -> None:
    agent = await joined(pool)
    for _ in range(3):
        assert await send(pool, agent, agent.connect())
    agent.restart(reboot=True)
    agent.sessions = 0
    assert await send(pool, agent, agent.connect())
    assert (await pool.snapshot()).nodes[agent.node_id].session == agent.session
