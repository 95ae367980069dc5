"""The process table, as far as it is needed: who belongs to a workload, and how much memory they hold.

A workload is everything in the session that its leader opened, and every descendant of the leader, so a child that
makes a group of its own still counts. Read from /proc, which costs some microseconds a process.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.core.processes import ProcessIdentity, boot_id, identify

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    resident_bytes: int
    zombie: bool


def read_entry(pid: int) -> ProcessEntry | None:
    """Return the entry of a process, zombies included; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessEntry(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        resident_bytes=int(fields[21]) * _PAGE,
        zombie=fields[0] in "ZX",
    )


def read_table() -> dict[int, ProcessEntry]:
    """Return the whole table by pid."""
    found = (read_entry(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {entry.pid: entry for entry in found if entry is not None}


def real_users() -> Iterator[tuple[int, int]]:
    """Yield pid and real user of every process. The owner of its /proc entry would not do: a process can hide there."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/status") as file:
                line = next((line for line in file if line.startswith("Uid:")), None)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if line is not None:
            yield int(name), int(line.split()[1])


def processes_of(uids: Collection[int]) -> list[ProcessIdentity]:
    """Return every running process of the users ``uids``."""
    if not uids:
        return []
    found = (identify(pid) for pid, uid in real_users() if uid in uids)
    return [process for process in found if process is not None]


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process even when it is a zombie already, as a child that failed at once is."""
    entry = read_entry(pid)
    return None if entry is None else ProcessIdentity(pid, entry.start_ticks, boot_id())


def members(leader: ProcessIdentity, table: Mapping[int, ProcessEntry]) -> list[ProcessEntry]:
    """Return who runs in the leader's session or descends from it, the leader included, zombies not.

    A pid that was given to a stranger after the leader's end names nobody.
    """
    first = table.get(leader.pid)
    if first is not None and first.start_ticks != leader.start_ticks:
        return []
    found = {entry.pid for entry in table.values() if entry.session == leader.pid}
    if first is not None:
        found.add(leader.pid)
    _add_descendants(found, table.values())
    return [table[pid] for pid in sorted(found) if not table[pid].zombie]


def _add_descendants(found: set[int], entries: Iterable[ProcessEntry]) -> None:
    children: dict[int, list[int]] = {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry.pid)
    waiting = list(found)
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(fresh)
        waiting.extend(fresh)


def resident_mib(entries: Iterable[ProcessEntry]) -> int:
    """Return the resident memory of the entries together, in MiB; pages they share count for each."""
    return sum(entry.resident_bytes for entry in entries) // 2**20
