"""One event, two readers: words in a terminal, one JSON object a line for a machine; failed requests by their id."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from gpupool.control.http import problems
from gpupool.core.errors import NotFoundError, UnavailableError

PROGRAM = """
import structlog
from gpupool.core.logging import set_up_logging
set_up_logging("tester")
structlog.get_logger("probe").info("launched", placement="pl-01", node="n\\u00f6de")
import logging
logging.getLogger("a.library").warning("said %s", "something")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger("probe").exception("failed", request_id="req-02")
"""


def run_piped(checkout: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True, timeout=60
    ).stderr


def run_in_terminal(checkout: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(checkout / "src"), "TERM": "xterm"}
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=env, stderr=follower, stdout=follower
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 65536):
                shown += piece
        except OSError:
            # Linux's way to say that the other side of a terminal is closed.
            pass
        finally:
            os.close(leader)
        assert process.wait(60) == 0
    return shown.decode()


def test_piped_it_is_one_object_a_line(checkout: Path) -> None:
    launched, library, failed = map(json.loads, run_piped(checkout).splitlines())
    assert (launched["event"], launched["placement"], launched["node"]) == ("launched", "pl-01", "nöde")
    assert {line["role"] for line in (launched, library, failed)} == {"tester"}
    assert (library["event"], library["logger"], library["level"]) == (
        "said something",
        "a.library",
        "warning",
    )
    assert failed["request_id"] == "req-02"
    assert "ZeroDivisionError" in failed["exception"]


def test_in_a_terminal_it_is_words(checkout: Path) -> None:
    shown = run_in_terminal(checkout)
    assert "launched" in shown
    assert "pl-01" in shown
    assert "ZeroDivisionError" in shown
    for line in shown.splitlines():
        with pytest.raises(ValueError, match=r"Expecting value|Extra data"):
            json.loads(line)


class Recorder:
    """Keeps what a module logs."""

    def __init__(self) -> None:
        self.told: list[dict[str, object]] = []

    def warning(self, event: str, **facts: object) -> None:
        self.told.append({"event": event, **facts})


async def test_control_names_the_request_that_it_could_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(problems, "_LOG", recorder)
    app = FastAPI()
    problems.add_problem_handlers(app)

    @app.get("/unavailable")
    async def unavailable() -> None:
        raise UnavailableError("The node does not answer.")

    @app.get("/missing")
    async def missing() -> None:
        raise NotFoundError

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
        reply = await client.get("/unavailable")
        # What the client did wrong is the client's to know.
        assert (await client.get("/missing")).status_code == 404
    (told,) = recorder.told
    assert told["event"] == "request.failed"
    assert told["request_id"] == reply.json()["request_id"]
    assert str(told["request_id"]).startswith("req-")
