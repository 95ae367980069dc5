"""What people read of the pool: nothing that is copied is ever cut, and reasons say what holds now."""

import pytest

from cli_samples import ID, placement, workload
from gpupool.cli.checks.finding import failed, passed, warned
from gpupool.cli.doctor import print_findings
from gpupool.cli.output import print_table
from gpupool.cli.overview import print_placements, print_workloads, workload_why
from gpupool.fleet.placements import PlacementState

LONG = "no node takes it: " + "AMD EPYC is a cpu, a gpu is asked; " * 6


def test_ids_and_addresses_stay_whole_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_placements([placement(reason=LONG)], width=80)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(ID) for line in lines)
    assert any("192.168.100.100:31295" in line for line in lines)
    assert "".join(" ".join(lines).split()).count("agpuisasked") == 6


def test_a_sentence_goes_below_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_workloads([workload(why=LONG)], width=80)
    title, head, row, *below = capsys.readouterr().out.splitlines()
    assert (title, head.split()[-1], row.split()[-1]) == ("Workloads", "STATE", "waiting")
    assert below[0].startswith("  why: no node takes it")
    assert max(map(len, below)) <= 80


def test_wide_characters_keep_columns_apart(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("T", ("A", "B"), [("显卡", "x"), ("ab", "y")], "none", width=80)
    assert capsys.readouterr().out.splitlines()[1:] == ["A     B", "显卡  x", "ab    y"]


def test_failures_that_are_alike_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    failures = [placement(id=f"pl-{n}", reason=f"exit: code 1 after 0.{n} s") for n in range(4)]
    print_placements([*failures, placement(id="pl-x", reason="lost")], width=100)
    output = capsys.readouterr().out
    assert "exit: code 1 after 0.0 s (3 more like it)" in output
    assert "pl-1" not in output
    assert "pl-x" in output


def test_live_deployments_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_placements([placement(PlacementState.ACTIVE, id=f"pl-{n}") for n in range(3)], width=100)
    assert "more like it" not in capsys.readouterr().out


def test_a_try_that_is_under_way_tells_of_the_last_one() -> None:
    trying = placement(PlacementState.VERIFYING, restarts=1)
    seen = workload(trying, failures=1, last_failure="unhealthy: HTTP 404")
    assert workload_why(seen) == "try 3; last: unhealthy: HTTP 404"


def test_what_is_active_has_nothing_to_explain() -> None:
    seen = workload(placement(PlacementState.ACTIVE), active=1, why="failed 2 times in a row")
    assert workload_why(seen) is None


def test_doctor_begins_with_what_is_wrong_and_cuts_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://127.0.0.1:32000/" + "x" * 70
    found = [
        passed("python", "3.11"),
        warned("disk", "1 GiB", "It is nearly full.", "Free some."),
        failed("control answers", url, "It does not answer.", "Look at its log."),
    ]
    print_findings(found, width=60)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines if not line.startswith(" ")] == ["fail", "warn", "pass"]
    assert any(url in line for line in lines)
    assert "      What to do: Look at its log." in lines
