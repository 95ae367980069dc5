"""What a crash writes down: where it happened, never what the variables held."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import structlog
from gpupool.core.logging import set_up_logging
def act(token):
    raise ValueError("it broke")
set_up_logging("tested")
try:
    act("".join(["planted", "-secret-", "9913"]))
except ValueError:
    structlog.get_logger("tested").exception("crashed")
act("".join(["planted", "-secret-", "9913"]))
"""


def piped() -> bytes:
    """Return what the program writes to a pipe."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment(), capture_output=True, check=False, timeout=60
    ).stderr


def at_a_terminal() -> bytes:
    """Return what the program writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment(), stderr=theirs)
    os.close(theirs)
    told = b""
    try:
        while piece := os.read(ours, 4096):
            told += piece
    except OSError:
        pass  # how a terminal tells that nobody is left at its other end
    finally:
        os.close(ours)
    assert process.wait(60) == 1
    return told


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}


@pytest.mark.parametrize("run", [piped, at_a_terminal])
def test_no_variable_is_written_down(run: Callable[[], bytes]) -> None:
    told = run()
    assert told.count(b"it broke") >= 2
    assert b"in act" in told
    assert b"planted-secret-9913" not in told
