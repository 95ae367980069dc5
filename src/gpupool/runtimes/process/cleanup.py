"""Ending everything that run records name, without an agent: for ``gpupool up`` and its warden.

Workloads outlive an agent that was killed, on purpose. When the whole pool is to be gone, this is what ends them.
"""

import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from gpupool.core.processes import ProcessIdentity, boot_id
from gpupool.runtimes.process.confinement import own_users
from gpupool.runtimes.process.ending import signal_all
from gpupool.runtimes.process.launching import collect
from gpupool.runtimes.process.marks import find_marked
from gpupool.runtimes.process.records import Phase, all_runs
from gpupool.runtimes.process.table import members, processes_of, read_table

MOST_GRACE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05


def end_recorded(runs: Path) -> list[str]:
    """End every workload of a runs folder and mark its record exited; return one line for each that still ran.

    Blocks until all are gone: at most the longest grace (10 s at most, for all together) and a moment. Call it only
    when no agent runs on this folder.
    """
    found = list(all_runs(runs))
    live = [(folder, record) for folder, record in found if record.phase is not Phase.EXITED]
    leaders = [record.process for _, record in live if record.process]
    grace = max((record.order.grace_seconds for _, record in live), default=0.0)
    uids = own_users(record.uid for _, record in live)
    ended = end_all(runs, leaders, (), min(grace, MOST_GRACE_SECONDS), uids)
    pids = {process.pid for process in ended}
    lines: list[str] = []
    for folder, record in live:
        if record.process and record.process.pid in pids:
            pids.discard(record.process.pid)
            lines.append(
                f"{record.order.workload_name} ({record.order.placement_id}), pid {record.process.pid}"
            )
        folder.write(record.exited("stopped"))
    lines.extend(f"a process that a workload had started, pid {pid}" for pid in sorted(pids))
    return lines


def end_all(
    runs: Path,
    leaders: Sequence[ProcessIdentity],
    spare: Collection[str],
    grace_seconds: float,
    uids: Collection[int] = (),
) -> list[ProcessIdentity]:
    """End the leaders, their sessions, every marked process and every one of the users ``uids``.

    Marked processes of placements in ``spare`` go on.
    Returns who was running at the first look. Blocks until they are gone.
    """

    def running() -> list[ProcessIdentity]:
        return sorted({*_running(runs, leaders, spare), *processes_of(uids)}, key=lambda process: process.pid)

    first = running()
    found = first
    if found:
        _signal(leaders, found, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while found and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        found = running()
    while found:
        _signal(leaders, found, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
        found = running()
    # Some may be children of this very process, which nobody watches any more.
    for process in {*first, *leaders}:
        collect(process)
    return first


def _running(runs: Path, leaders: Sequence[ProcessIdentity], spare: Collection[str]) -> list[ProcessIdentity]:
    found = {marked.process for marked in find_marked(runs) if marked.placement_id not in spare}
    table, boot = read_table(), boot_id()
    for leader in leaders:
        if leader.boot_id == boot:
            found.update(
                ProcessIdentity(entry.pid, entry.start_ticks, boot) for entry in members(leader, table)
            )
    return list(found)


def _signal(
    leaders: Sequence[ProcessIdentity], found: Sequence[ProcessIdentity], number: signal.Signals
) -> None:
    for leader in leaders:
        signal_all(leader, [process for process in found if process == leader], number)
    signal_all(None, [process for process in found if process not in leaders], number)
