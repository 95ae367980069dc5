"""Control and agent killed at every step of a placement's life: the pool gets where it was going, and nothing stays.

Each case is one whole life of a chute - wanted, placed, started, active, deleted, gone - in which one process dies
without a word at a point on the way up and at a point on the way down. Whoever restarts it does nothing else.
"""

import itertools
from collections.abc import AsyncIterator

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
