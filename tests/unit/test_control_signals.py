"""Waiting within control, matching log answers, and remembering nonces."""

import asyncio

import pytest

from gpupool.control.changes import Changes
from gpupool.control.http.signatures import ReplayGuard
from gpupool.control.links import Links
from gpupool.control.logdesk import LogDesk
from gpupool.core.clock import FakeClock
from gpupool.core.errors import NotFoundError, UnauthorizedError


async def test_a_waiter_wakes_at_the_change_it_waits_for() -> None:
    changes = Changes(5)
    waiting = asyncio.create_task(changes.until(lambda: changes.seq > 6, 60))
    changes.announce(6)
    await asyncio.sleep(0)
    assert not waiting.done()
    changes.announce(7)
    assert await waiting
    changes.announce(3)
    assert changes.seq == 7


async def test_a_wait_ends_with_its_time_and_with_the_process() -> None:
    changes = Changes()
    assert not await changes.until(lambda: False, 0.001)
    waiting = asyncio.create_task(changes.after(changes.count + 1000, 60))
    held = asyncio.create_task(changes.until(lambda: False, 60))
    await asyncio.sleep(0)
    changes.close()
    assert await waiting
    assert not await held
    assert not await changes.until(lambda: False, 60)


async def test_only_the_node_that_was_asked_may_answer() -> None:
    desk = LogDesk()
    with desk.expect("req-1", "node-a") as answer:
        with pytest.raises(NotFoundError):
            desk.answer("req-1", "node-b", b"forged")
        desk.answer("req-1", "node-a", b"text")
        desk.answer("req-1", "node-a", b"again")
        assert await answer == b"text"
    with pytest.raises(NotFoundError):
        desk.answer("req-1", "node-a", b"late")


def test_a_nonce_is_taken_once_for_as_long_as_its_time_is() -> None:
    guard = ReplayGuard()
    guard.admit(1000, "one", 1000)
    with pytest.raises(UnauthorizedError):
        guard.admit(1000, "one", 1300)
    guard.admit(1301, "two", 1301)
    with pytest.raises(UnauthorizedError):
        guard.admit(1000, "one", 1301)


def test_a_full_memory_gives_up_old_times_and_never_a_replay() -> None:
    guard = ReplayGuard(capacity=3)
    for number in range(6):
        guard.admit(1000 + number, f"nonce-{number}", 1000)
    for number in range(6):
        with pytest.raises(UnauthorizedError):
            guard.admit(1000 + number, f"nonce-{number}", 1000)
    guard.admit(1006, "fresh", 1000)


def test_silence_is_noted_by_the_clock_that_never_jumps() -> None:
    clock = FakeClock()
    links = Links(clock)
    links.heard("node-a")
    clock.step_wall(10_000)
    assert links.gone_silent(20) == []
    clock.advance(21)
    assert links.gone_silent(20) == ["node-a"]
    links.heard("node-a")
    assert links.gone_silent(20) == []
