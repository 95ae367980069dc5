"""Who belongs to a workload, judged from a process table."""

import os
import subprocess
import sys

from gpupool.core.processes import ProcessIdentity, identify
from gpupool.runtimes.process.table import (
    ProcessEntry,
    identity_of,
    members,
    read_entry,
    read_table,
    resident_mib,
)

LEADER = ProcessIdentity(100, 7, "boot")


def entry(pid: int, parent: int = 1, session: int = 1, start: int = 7, zombie: bool = False) -> ProcessEntry:
    return ProcessEntry(pid, parent, session, start, 2**20, zombie)


def found(*entries: ProcessEntry) -> list[int]:
    return [item.pid for item in members(LEADER, {item.pid: item for item in entries})]


def test_session_and_descendants_belong_and_strangers_do_not() -> None:
    assert found(
        entry(100, session=100),
        entry(101, parent=100, session=100),
        entry(102, parent=1, session=100),
        entry(103, parent=101, session=103),
        entry(104, parent=103, session=104),
        entry(200),
    ) == [100, 101, 102, 103, 104]


def test_the_session_outlives_its_leader() -> None:
    assert found(entry(101, session=100)) == [101]
    assert found(entry(100, session=100, zombie=True), entry(101, session=100)) == [101]


def test_a_reused_pid_names_nobody() -> None:
    assert found(entry(100, session=100, start=8), entry(101, parent=100, session=100)) == []


def test_zombies_do_not_run() -> None:
    assert found(entry(100, session=100), entry(101, parent=100, session=100, zombie=True)) == [100]


def test_memory_is_added_up() -> None:
    assert resident_mib([entry(1), entry(2), entry(3)]) == 3


def test_the_real_table_holds_this_process() -> None:
    own = read_table()[os.getpid()]
    assert own.parent == os.getppid()
    assert resident_mib([own]) > 1
    assert identity_of(os.getpid()) == identify(os.getpid())


def test_a_child_that_ended_is_a_zombie_with_an_identity_until_collected() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        seen = read_entry(child.pid)
        assert seen is not None
        assert seen.zombie
        assert identity_of(child.pid) is not None
        assert identify(child.pid) is None
    assert read_entry(child.pid) is None
