"""The logs of running processes are cut by size, and a disk that refuses ends nothing."""

import os
from pathlib import Path

import pytest

from gpupool.cli.up.logs import LOOK_SECONDS, LogKeeper
from gpupool.core.clock import FakeClock
from gpupool.runtimes.process.output import MOST_BYTES, OLDER_FILES


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def keeper(tmp_path: Path, clock: FakeClock) -> LogKeeper:
    return LogKeeper(tmp_path, clock.monotonic)


def fill(path: Path, byte: bytes) -> None:
    with path.open("ab") as file:
        file.write(byte * MOST_BYTES)


def test_a_writer_goes_on_in_the_emptied_file(tmp_path: Path, keeper: LogKeeper) -> None:
    log = tmp_path / "control.log"
    fill(log, b"a")
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        assert keeper.tend() is None
        os.write(descriptor, b"after\n")
    finally:
        os.close(descriptor)
    assert log.read_bytes() == b"after\n"
    assert (tmp_path / "control.log.1").read_bytes() == b"a" * MOST_BYTES
    assert (tmp_path / "control.log.1").stat().st_mode & 0o777 == 0o600


def test_old_logs_never_take_more_than_their_share(
    tmp_path: Path, keeper: LogKeeper, clock: FakeClock
) -> None:
    for byte in (b"a", b"b", b"c", b"d"):
        fill(tmp_path / "agent.log", byte)
        assert keeper.tend() is None
        clock.advance(LOOK_SECONDS)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"agent.log", *(f"agent.log.{number}" for number in range(1, OLDER_FILES + 1))}
    assert (tmp_path / "agent.log.1").read_bytes()[:1] == b"d"
    assert (tmp_path / "agent.log.2").read_bytes()[:1] == b"c"


def test_it_looks_only_now_and_then(tmp_path: Path, keeper: LogKeeper, clock: FakeClock) -> None:
    assert keeper.tend() is None
    fill(tmp_path / "gateway.log", b"x")
    clock.advance(LOOK_SECONDS / 2)
    keeper.tend()
    assert (tmp_path / "gateway.log").stat().st_size == MOST_BYTES
    clock.advance(LOOK_SECONDS / 2)
    keeper.tend()
    assert (tmp_path / "gateway.log").stat().st_size == 0


def test_a_log_that_cannot_be_cut_is_told_once_and_tried_again(
    tmp_path: Path, keeper: LogKeeper, clock: FakeClock
) -> None:
    log, blocked = tmp_path / "control.log", tmp_path / "control.log.1"
    fill(log, b"a")
    # A folder in the way refuses every user, also one that may write anywhere.
    (blocked / "in-the-way").mkdir(parents=True)
    (tmp_path / "control.log.2" / "in-the-way").mkdir(parents=True)
    told = keeper.tend()
    assert told is not None
    assert str(log) in told
    clock.advance(LOOK_SECONDS)
    assert keeper.tend() is None
    for folder in (blocked, tmp_path / "control.log.2"):
        (folder / "in-the-way").rmdir()
        folder.rmdir()
    clock.advance(LOOK_SECONDS)
    assert keeper.tend() is None
    assert log.stat().st_size == 0
