"""The processes that ``up`` itself runs: control, gateway and agent, each with a log, an identity and a watch."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from gpupool.core.errors import DeadlineError, EnvironmentProblemError
from gpupool.core.ids import new_id
from gpupool.runtimes.process.closing_words import event_of

_RESTART_PAUSES: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
_STEADY_SECONDS: Final = 60.0
_HEALTH_LIMIT: Final = 4096
_MOST_WORDS: Final = 600
_OWN_ERROR: Final = re.compile(r"Error \[\w+\]: (?P<message>.*)")


def ended_how(code: int | None) -> str:
    """Return an exit code as words: ``exit code 3``, ``SIGKILL``."""
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def last_words(log: str) -> str:
    """Return the last message of a process's log: of our own errors the sentence, of a JSON line event and error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if not lines:
        return "its log is empty"
    for at in range(len(lines) - 1, max(-1, len(lines) - 4), -1):
        ours = _OWN_ERROR.match(lines[at])
        if ours is not None:
            return " ".join([ours["message"], *lines[at + 1 :]])[:_MOST_WORDS]
    return event_of(lines[-1])[:_MOST_WORDS]


class Child:
    """One process of the pool, started again with growing pauses when it dies."""

    def __init__(
        self,
        role: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        address: tuple[str, int] | None = None,
    ) -> None:
        """``address``: host and port where the process answers, if it listens."""
        self.role, self.log, self.address = role, log, address
        self._arguments, self._env = list(arguments), dict(env)
        self._deaths = 0
        self._started = 0.0
        self._due = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self.instance_id = ""

    def start(self) -> None:
        """Start the process with a fresh instance id, its output appended to its log."""
        self.instance_id = new_id("inst")
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gpupool", *self._arguments],
                env={**os.environ, **self._env, "GPUPOOL_INSTANCE_ID": self.instance_id},
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        self._started = time.monotonic()

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has died; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_ready(self, seconds: float) -> float:
        """Block until ``/healthz`` answers with this very instance; return the seconds it took.

        Raises EnvironmentProblemError when the process dies, DeadlineError after ``seconds``.
        """
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            self.check_alive()
            if self._is_ours():
                return time.monotonic() - self._started
            time.sleep(0.02)
        raise DeadlineError(
            f"The {self.role} process is not ready after {seconds:g} s.", remedy=f"Its log is {self.log}."
        )

    def check_alive(self) -> None:
        """Raise EnvironmentProblemError, with the log's last lines, when the process has died."""
        if self.exit_code() is not None:
            raise EnvironmentProblemError(
                f"The {self.role} process ended at once ({ended_how(self.exit_code())}): {self.last_words()}",
                remedy=f"Mend what it says; its whole log is {self.log}.",
            )

    def _is_ours(self) -> bool:
        if self.address is None:
            return False
        connection = HTTPConnection(*self.address, timeout=1.0)
        try:
            connection.request("GET", "/healthz")
            answer = json.loads(connection.getresponse().read(_HEALTH_LIMIT))
        except (OSError, HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return isinstance(answer, dict) and answer.get("instance_id") == self.instance_id

    def last_words(self) -> str:
        """Return what the log says last, for an error message."""
        return last_words(self.log.read_text(errors="replace"))

    def tend(self, now: float) -> str | None:
        """Notice a death, or start again once the pause is over; return what happened, in words.

        ``now`` is monotonic seconds.
        """
        if self._process is None:
            if now < self._due:
                return None
            self.start()
            return f"{self.role} was started again"
        code = self._process.poll()
        if code is None:
            return None
        self._deaths = 1 if now - self._started > _STEADY_SECONDS else self._deaths + 1
        pause = _RESTART_PAUSES[min(self._deaths, len(_RESTART_PAUSES)) - 1]
        self._process, self._due = None, now + pause
        # After a signal the last line is what it happened to do then, and says nothing of the end.
        words = f": {self.last_words()}" if code > 0 else ""
        return f"{self.role} ended ({ended_how(code)}) and starts again in {pause:g} s{words}"

    def stop(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait_gone(self, seconds: float) -> bool:
        """Block until the process is gone, at most ``seconds``; True when it is."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True
