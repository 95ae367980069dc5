"""A card that was put into another machine while the old one, which still counts as holding it, is away."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from control_stage import cpu_of, gpu_of
from fleet_samples import NOON, new_database
from gpupool.contracts.agent_link import DeviceReport, JoinRequest
from gpupool.contracts.spec import SpecFile
from gpupool.control.joining import forget_sessions, join
from gpupool.control.pool import Pool
from gpupool.control.reconciling import Reconciler
from gpupool.control.reporting import take_report
from gpupool.control.wanting import deploy
from gpupool.core.clock import FakeClock
from gpupool.fleet.ports.store import Store
from gpupool.store.open import open_store
from model_agent import ModelAgent


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(new_database(tmp_path))
    yield opened
    await opened.close()


async def connect(pool: Pool, name: str, *devices: DeviceReport) -> str:
    """Let a node join and show its devices; return its id."""
    agent = ModelAgent(name, [cpu_of(name), *devices])
    key = f"{name:A<43}="[:43].replace("-", "+") + "="
    async with pool.change() as change:
        agent.node_id = (await join(change, JoinRequest(name=name, public_key=key, address="h"))).id
    await take_report(pool, agent.node_id, agent.connect())
    return agent.node_id


async def want(pool: Pool, name: str) -> None:
    """Want one instance on one GPU."""
    spec = SpecFile.model_validate({"name": name, "command": ["serve"], "gpu_count": 1})
    async with pool.change() as change:
        await deploy(change, spec, pool.catalog)
    await Reconciler(pool).settle()


async def test_a_card_that_is_held_elsewhere_does_not_keep_work_from_the_free_one(store: Store) -> None:
    before = Pool(store, FakeClock(NOON))
    await connect(before, "node-a", gpu_of("x", 0))
    await want(before, "old")
    after = Pool(store, FakeClock(NOON))
    await forget_sessions(after)
    # The moved card is the first choice by its id.
    second = await connect(after, "node-b", gpu_of("x", 0), gpu_of("x", 1))
    await want(after, "new")
    snapshot = await after.snapshot()
    held = {claim.device_id for claims in snapshot.claims.values() for claim in claims}
    assert held == {"GPU-x-0", "GPU-x-1"}
    assert len(snapshot.live_on(second)) == 1
    await want(after, "third")
    third = (await after.snapshot()).find_workload("third")
    assert third is not None
    assert "held by" in (third.why or "")


async def test_a_disputed_card_is_taken_over_once_the_old_machine_comes_back_without_it(store: Store) -> None:
    pool = Pool(store, FakeClock(NOON))
    await connect(pool, "node-a", gpu_of("x"))
    taker = ModelAgent("node-b", [cpu_of("node-b"), gpu_of("x")])
    async with pool.change() as change:
        request = JoinRequest(name="node-b", public_key="B" * 43 + "=", address="h")
        taker.node_id = (await join(change, request)).id
    assert (await take_report(pool, taker.node_id, taker.connect())).session_known
    assert (await take_report(pool, taker.node_id, taker.report())).session_known
    back = ModelAgent("node-a", [cpu_of("node-a")], sessions=1, boots=1)
    back.node_id = next(node.id for node in (await pool.snapshot()).nodes.values() if node.name == "node-a")
    assert (await take_report(pool, back.node_id, back.connect())).session_known
    assert not (await take_report(pool, taker.node_id, taker.report())).session_known
    assert (await take_report(pool, taker.node_id, taker.connect())).session_known
    assert (await take_report(pool, taker.node_id, taker.report())).session_known
    (card,) = [
        device
        for device in (await pool.snapshot()).devices[taker.node_id]
        if device.index == 0 and device.short_ref
    ]
    assert card.present
