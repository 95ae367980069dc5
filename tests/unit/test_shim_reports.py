"""What stock harvesters say they have lost: read with limits, counted over processes and restarts, told while fresh."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.proxy.alarms import Alarms
from gpupool.recompute.proxy.alert_rules import HARVESTER_LOST, troubles
from gpupool.recompute.proxy.memory import Memory, load
from gpupool.recompute.proxy.shim_reports import (
    LONGEST,
    PROCESSES_KEPT,
    RECENT_SECONDS,
    ShimReport,
    ShimTally,
    read_report,
)
from gpupool.recompute.proxy.tallies import Tallies

FULL = b"qualities=3 proofs=1 fallbacks=2 pid=1234 since=1796090000 why=silent"


def report(qualities: int = 0, proofs: int = 0, fallbacks: int = 0, pid: int = 1, since: int = 10) -> bytes:
    return f"qualities={qualities} proofs={proofs} fallbacks={fallbacks} pid={pid} since={since} why=closed".encode()


def test_a_report_is_read_and_names_that_are_not_known_are_skipped() -> None:
    assert read_report(FULL) == ShimReport(3, 1, 2, 1234, 1796090000, "silent")
    assert read_report(FULL + b" more=yes") == read_report(FULL)
    assert read_report(b"pid=7") == ShimReport(0, 0, 0, 7, 0)


@pytest.mark.parametrize(
    "value",
    [b"", b"qualities=1", b"qualities=-1 pid=1", b"qualities=1e3 pid=1", b"pid=1234567890123", b"pid=1 why=<b>",
     b"pid=1 why=" + b"a" * 21, b"pid=1 " + b"x=y " * LONGEST, "pid=١".encode(), b"\xff\xfe"],
)  # fmt: skip
def test_what_is_no_report_is_none(value: bytes) -> None:
    assert read_report(value) is None


@given(st.binary(max_size=400))
def test_no_bytes_break_it(value: bytes) -> None:
    found = read_report(value)
    assert found is None or found.pid >= 0


def test_only_what_has_grown_counts_also_when_requests_overtake_each_other() -> None:
    tally = ShimTally()
    for value in (report(1), report(3), report(2), report(3), report(3, proofs=1)):
        tally.take(value, 0.0)
    assert (tally.qualities, tally.proofs) == (3, 1)


def test_a_process_that_starts_again_counts_from_nothing_even_with_the_same_pid() -> None:
    tally = ShimTally()
    tally.take(report(3, since=10), 0.0)
    tally.take(report(2, since=99), 0.0)
    tally.take(report(4, pid=2), 0.0)
    assert tally.qualities == 9


def test_memory_stays_bounded() -> None:
    tally = ShimTally()
    for pid in range(100):
        tally.take(report(1, pid=pid), 0.0)
    assert tally.qualities == 100
    assert len(tally.kept()["processes"]) == PROCESSES_KEPT


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3)), max_size=40))
def test_the_total_is_the_sum_of_what_each_process_said_at_most(said: list[tuple[int, int]]) -> None:
    tally, most = ShimTally(), dict[int, int]()
    for qualities, pid in said:
        tally.take(report(qualities, pid=pid), 0.0)
        most[pid] = max(most.get(pid, 0), qualities)
    assert tally.qualities == sum(most.values())


def test_losses_are_told_while_they_are_fresh_and_told_as_over() -> None:
    tallies, alarms = Tallies(300.0), Alarms()

    def look(now: float) -> list[str]:
        shim = tallies.clients["unix"].shim
        assert shim is not None
        why = shim.trouble(now)
        found = troubles([], set(), {}, 0, {"unix": why} if why else {})
        found = {key: words for key, words in found.items() if key[0] == HARVESTER_LOST}
        return [event.words for event in alarms.look(found, now, now)]

    assert tallies.shim("unix", report(0), 0.0)
    assert look(0.0) == []
    tallies.shim("unix", report(2, proofs=1), 5.0)
    (words,) = look(5.0)
    assert "3 look-ups got no answer" in words
    assert "closed" in words
    tallies.shim("unix", report(4, proofs=1), 30.0)
    assert look(30.0) == []
    (over,) = look(31.0 + RECENT_SECONDS)
    assert over.startswith("over after")
    assert tallies.shim_losses == {"qualities": 4, "proofs": 1, "fallbacks": 0}


def test_fall_backs_are_counted_and_are_no_loss() -> None:
    tally = ShimTally()
    tally.take(report(fallbacks=5), 0.0)
    assert tally.fallbacks == 5
    assert tally.trouble(0.0) == ""


def test_what_is_no_report_is_worth_one_warning() -> None:
    tallies = Tallies(300.0)
    assert [tallies.shim("a", b"nonsense", 0.0) for _ in range(3)] == [False, True, True]


async def test_a_restart_of_the_proxy_neither_forgets_nor_tells_again(tmp_path: Path) -> None:
    before = Tallies(300.0)
    before.shim("unix", report(3, proofs=1, fallbacks=2), 5.0)
    await Memory(tmp_path / "h", before).save(100.0, 5.0)
    after = Tallies(300.0)
    load(tmp_path / "h", after)
    after.shim("unix", report(4, proofs=1, fallbacks=2), 1.0)
    shim = after.clients["unix"].shim
    assert shim is not None
    assert (shim.qualities, shim.proofs, shim.fallbacks) == (4, 1, 2)
    assert "1 look-ups" in shim.trouble(1.0)


async def test_a_kept_count_that_is_none_puts_the_file_aside(tmp_path: Path) -> None:
    before = Tallies(300.0)
    before.shim("unix", FULL, 5.0)
    await Memory(tmp_path / "h", before).save(100.0, 5.0)
    kept = json.loads((tmp_path / "h").read_text())
    kept["clients"]["unix"]["shim"]["qualities"] = "many"
    (tmp_path / "h").write_text(json.dumps(kept))
    after = Tallies(300.0)
    load(tmp_path / "h", after)
    assert after.clients == {}
    assert (tmp_path / "h.unreadable").exists()
