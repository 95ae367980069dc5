"""Control and agent killed at every step of a placement's life: the pool gets where it was going, and nothing stays.

Each case is one whole life of a chute - wanted, placed, started, active, deleted, gone - in which one process dies
without a word at a point on the way up and at a point on the way down. Whoever restarts it does nothing else.
"""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from light_pool import LightPool

UP = [
    f"{point}.{side}"
    for point in (
        "control.workload.created",
        "control.placement.planned",
        "control.command.start",
        "agent.journal.start",
        "control.quiet",
        "control.placement.starting",
        "control.placement.verifying",
        "control.placement.noted",
        "control.placement.active",
        "agent.report",
    )
    for side in ("before", "after")
] + [
    "file.journal.json",
    "file.record.json",
    "runtime.launch.intended",
    "file.record.json:2",
    "runtime.launch.spawned",
    "runtime.launch.recorded",
    "agent.report.before:2",
    "agent.report.after:2",
]
DOWN = [
    f"{point}.{side}"
    for point in (
        "control.workload.deleted",
        "control.placement.draining",
        "control.command.stop",
        "agent.journal.stop",
        "runtime.end",
        "control.placement.ended",
        "agent.journal.drop",
        "runtime.forget",
    )
    for side in ("before", "after")
]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LightPool]:
    async with LightPool(tmp_path_factory.mktemp("killed")) as one:
        await one.start()
        yield one


async def dies(pool: LightPool, point: str) -> None:
    """Return when the armed process has died at its point."""
    await pool.until(lambda: not pool.failpoint.exists(), f"a death at {point}")


@pytest.mark.parametrize(("up", "down"), list(itertools.zip_longest(UP, DOWN, fillvalue="")))
async def test_a_life_with_a_death_on_the_way(pool: LightPool, up: str, down: str) -> None:
    deaths = pool.control.starts + pool.agent.starts
    pool.failpoint.write_text(up)
    await pool.deploy()
    await dies(pool, up)
    await pool.active()
    await pool.check_sound()
    assert len(pool.processes()) == 1
    if down:
        pool.failpoint.write_text(down)
    await pool.delete()
    await dies(pool, down)
    await pool.gone()
    await pool.check_sound()
    assert pool.records() == {}
    assert pool.control.starts + pool.agent.starts == deaths + (2 if down else 1)


async def test_both_die_in_the_middle(pool: LightPool) -> None:
    pool.failpoint.write_text("control.placement.planned.after")
    await pool.deploy()
    await dies(pool, "the plan")
    pool.failpoint.write_text("runtime.launch.spawned")
    await dies(pool, "the launch")
    await pool.active()
    await pool.check_sound()
    pool.failpoint.write_text("runtime.end.before")
    await pool.delete()
    await dies(pool, "the end")
    pool.failpoint.write_text("control.placement.ended.before")
    await dies(pool, "the record of the end")
    await pool.gone()
    await pool.check_sound()


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_failure_is_counted_once_though_control_dies_of_it(pool: LightPool, side: str) -> None:
    pool.failpoint.write_text(f"control.workload.backing_off.{side}")
    await pool.deploy(command=["python", "-c", "raise SystemExit(7)"], max_restarts=0)
    await dies(pool, "the record of the failure")

    async def explained() -> dict[str, Any] | None:
        seen = await pool.workload()
        return seen if seen["why"] and not seen["live"] else None

    seen: dict[str, Any] = await pool.until(explained, "the reason")
    failures = [item["reason"] for item in seen["placements"]]
    assert seen["why"].startswith(f"failed {len(failures)} time")
    assert all(reason.startswith("exit: code 7") for reason in failures)
    await pool.deploy()
    await pool.active()
    await pool.check_sound()
    await pool.delete()
    await pool.gone()
    await pool.check_sound()


@pytest.mark.parametrize(
    "point", ["file.control.json", "control.control.started.before", "control.control.started.after"]
)
async def test_a_control_that_dies_while_it_starts_starts_again(pool: LightPool, point: str) -> None:
    await pool.deploy()
    before = await pool.active()
    pool.failpoint.write_text(point)
    pool.control.kill()
    await dies(pool, point)
    assert (await pool.active())["placements"] == before["placements"]
    await pool.delete()
    await pool.gone()
    await pool.check_sound()


@pytest.mark.parametrize(
    "point",
    [
        "file.operator.token",
        "file.node.key",
        "control.node.joined.before",
        "control.node.joined.after",
        "agent.journal.identity.before",
        "agent.journal.identity.after",
        "control.node.ready.before",
        "control.node.ready.after",
    ],
)
async def test_a_node_that_joins_is_one_node_whoever_dies_of_it(tmp_path: Path, point: str) -> None:
    async with LightPool(tmp_path) as fresh:
        fresh.failpoint.write_text(point)
        await fresh.start()
        assert not fresh.failpoint.exists()
        await fresh.check_sound()
        assert len(await fresh.get("/v1/nodes")) == 1
        assert len(await fresh.get("/v1/devices")) == 1
        assert fresh.control.starts + fresh.agent.starts == 3


async def test_no_point_was_left_out(pool: LightPool) -> None:
    """A life without deaths reaches no point that the list above lacks."""
    notes = pool.failpoint.with_name("failpoint.reached")
    notes.unlink()
    await pool.deploy()
    await pool.active()
    await pool.delete()
    await pool.gone()
    await pool.check_sound()
    listed = {point.partition(":")[0] for point in UP + DOWN}
    assert set(notes.read_text().split()) <= listed
