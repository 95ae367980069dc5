"""Ending a workload: politely, then for certain, with everything that it started.

The group gets the signal in one call. Whoever left the group is found through the process table and through the
mark in its environment, and each is signalled by pidfd, so a reused pid is never hit.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gpupool.core.processes import ProcessIdentity, boot_id
from gpupool.runtimes.process.confinement import own_users
from gpupool.runtimes.process.exits import ExitWatch
from gpupool.runtimes.process.marks import find_marked
from gpupool.runtimes.process.table import members, processes_of, read_table

_POLL_SECONDS: Final = 0.05
_POLL_GROWTH: Final = 1.3
_POLL_MOST: Final = 0.5


def survivors(
    runs: Path, placement_id: str, leader: ProcessIdentity | None, uid: int | None = None
) -> list[ProcessIdentity]:
    """Return every running process of a placement, each once; ``uid``: its Unix user, if it has one.

    Reads /proc; not for an event loop.
    """
    found = {marked.process for marked in find_marked(runs) if marked.placement_id == placement_id}
    found.update(processes_of(own_users([uid])))
    if leader is not None and leader.boot_id == boot_id():
        for entry in members(leader, read_table()):
            found.add(ProcessIdentity(entry.pid, entry.start_ticks, leader.boot_id))
    return sorted(found, key=lambda process: process.pid)


def signal_all(
    leader: ProcessIdentity | None, processes: Sequence[ProcessIdentity], number: signal.Signals
) -> None:
    """Send a signal to the leader's group at once, and to each of ``processes`` that it did not reach."""
    if leader is not None and leader in processes:
        leader.signal(number, group=True)
        if number is not signal.SIGKILL:
            processes = [process for process in processes if not _in_group(process, leader)]
    for process in processes:
        process.signal(number)


def _in_group(process: ProcessIdentity, leader: ProcessIdentity) -> bool:
    try:
        return os.getpgid(process.pid) == leader.pid
    except ProcessLookupError:
        return False


async def end_workload(
    runs: Path,
    placement_id: str,
    leader: ProcessIdentity | None,
    grace_seconds: float,
    hurry: asyncio.Event,
    uid: int | None = None,
) -> None:
    """Return when nothing of a placement runs any more: SIGTERM, then after the grace (or ``hurry``) SIGKILL."""
    found = await asyncio.to_thread(survivors, runs, placement_id, leader, uid)
    if found and grace_seconds > 0 and not hurry.is_set():
        signal_all(leader, found, signal.SIGTERM)
        found = await _wait_gone(runs, placement_id, leader, grace_seconds, hurry, uid)
    pause = _POLL_SECONDS
    while found:
        signal_all(leader, found, signal.SIGKILL)
        await asyncio.sleep(pause)
        pause = min(pause * _POLL_GROWTH, _POLL_MOST)
        found = await asyncio.to_thread(survivors, runs, placement_id, leader, uid)


async def _wait_gone(
    runs: Path,
    placement_id: str,
    leader: ProcessIdentity | None,
    seconds: float,
    hurry: asyncio.Event,
    uid: int | None,
) -> list[ProcessIdentity]:
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + seconds, _POLL_SECONDS
    with ExitStack() as stack:
        watch = None if leader is None else stack.enter_context(ExitWatch(leader))
        while True:
            found = await asyncio.to_thread(survivors, runs, placement_id, leader, uid)
            left = deadline - loop.time()
            if not found or left <= 0 or hurry.is_set():
                return found
            news: list[Coroutine[object, object, object]] = [hurry.wait()]
            if watch is not None and leader in found:
                news.append(watch.wait())
            if not await _any_within(min(pause, left), news):
                pause = min(pause * _POLL_GROWTH, _POLL_MOST)


async def _any_within(seconds: float, news: Sequence[Coroutine[object, object, object]]) -> bool:
    """Return as soon as one of ``news`` has come, at the latest after ``seconds``; False when none has."""
    waits = [asyncio.ensure_future(one) for one in news]
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in waits:
            waiting.cancel()
        await asyncio.wait(waits)
    return bool(done)
