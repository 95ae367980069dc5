"""The sidecar seen from outside: does it answer at its socket, what stands behind it, and starting it where it must.

One that is started here outlives the command that did so: `chia start` returns at once, while its harvester goes on
asking. Nobody watches such a sidecar; systemd does where its units are installed.
"""

import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from gpupool.core.errors import EnvironmentProblemError, UnavailableError
from gpupool.core.files import ensure_private_dir, read_json, write_private_json
from gpupool.core.processes import ProcessIdentity, identify
from gpupool.harvester.variables import PRELOAD

ASK_SECONDS: Final = 5.0
START_SECONDS: Final = 30.0
END_SECONDS: Final = 45.0
"""A sidecar finishes what is under way first."""
_PROCESS, _COMMAND = "process", "command"
_MOST_ANSWER: Final = 4 * 1024 * 1024
_SAMPLE: Final = re.compile(
    r'^gpupool_proxy_shim_(lost_total\{kind="(?P<kind>quality|proof)"\}|fallbacks_total) (?P<count>[0-9]+)$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarView:
    """What a sidecar says of itself."""

    answers: bool
    why: str = ""
    """Why it does not answer."""
    ready: bool = False
    """Some server has said that it can be asked."""
    version: str | None = None
    levels: list[int] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    """Name, trouble and counts of each server behind it."""
    lost: dict[str, int] = field(default_factory=dict)
    """``quality``, ``proof``, ``fallbacks``: what harvesters have told since it began."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        return asdict(self)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("gpupool", timeout=ASK_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def look(path: Path) -> SidecarView:
    """Return what the sidecar at ``path`` says; never raises for one that is not there."""
    try:
        ready = _get(path, "/readyz")[0] == 200
        server = json.loads(_get(path, "/v1/server")[1])
        nodes = json.loads(_get(path, "/v1/nodes")[1])["nodes"]
        page = _get(path, "/metrics")[1].decode()
        return SidecarView(
            answers=True,
            ready=ready,
            version=str(server.get("version")),
            levels=list(server.get("levels", [])),
            nodes=[
                {name: node.get(name) for name in ("name", "refused", "trouble", "answered", "failed")}
                for node in nodes
            ],
            lost={found["kind"] or "fallbacks": int(found["count"]) for found in _SAMPLE.finditer(page)},
        )
    except OSError as error:
        return SidecarView(answers=False, why=error.strerror or str(error) or type(error).__name__)
    except (http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return SidecarView(answers=False, why="what answers there is no sidecar of ours")


def _get(path: Path, target: str) -> tuple[int, bytes]:
    connection = _UnixConnection(path)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_ANSWER)
    finally:
        connection.close()


def ensure(
    path: Path, command: Sequence[str], log: Path, record: Path, environment: Mapping[str, str]
) -> bool:
    """Have a sidecar at ``path``; return whether it had to be started. Waits until it answers.

    One that was started here with another command, such as with other servers, is ended first.
    Raises UnavailableError where it ends or says nothing; its own words are in ``log``.
    """
    words = [*command, "--unix", str(path)]
    before = started_here(record)
    if before is not None and _command_in(record) != words:
        before.signal(signal.SIGTERM)
        before.wait_gone(END_SECONDS)
    if look(path).answers:
        return False
    sidecar = identify(_start(words, log, environment))
    if sidecar is not None:
        write_private_json(record, {_PROCESS: asdict(sidecar), _COMMAND: words})
    deadline = time.monotonic() + START_SECONDS
    while sidecar is not None and time.monotonic() < deadline and sidecar.alive():
        if look(path).answers:
            return True
        time.sleep(0.05)
    last = _last_lines(log, 3)
    raise UnavailableError(
        f"The sidecar did not come up{f': {last}' if last else ''}.",
        remedy=f"Look at {log}, and run `gpupool harvester run` again.",
    )


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
    """Start the sidecar in a session of its own, and return its pid."""
    ensure_private_dir(log.parent)
    # Our own library is for the harvester, not for the sidecar.
    own = {name: value for name, value in os.environ.items() if name != PRELOAD}
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        return os.posix_spawn(
            command[0], list(command), own | dict(environment), file_actions=streams, setsid=True
        )
    except OSError as error:
        raise EnvironmentProblemError(
            f"The sidecar cannot be started: {error.strerror}.",
            remedy="Check the installation of gpupool and the disk of its state folder.",
        ) from error


def started_here(record: Path) -> ProcessIdentity | None:
    """Return the sidecar that `ensure` has started, if it still runs."""
    kept = read_json(record)
    named = kept.get(_PROCESS, kept) if isinstance(kept, dict) else None
    try:
        process = ProcessIdentity(**named) if isinstance(named, dict) else None
    except TypeError:
        return None
    return process if process is not None and process.alive() else None


def _command_in(record: Path) -> Any:
    kept = read_json(record)
    return kept.get(_COMMAND) if isinstance(kept, dict) else None


def _last_lines(path: Path, count: int) -> str:
    return " / ".join(tail(path, count))


def tail(path: Path, count: int) -> list[str]:
    """Return the last lines of a log, newest last; none where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16 * 1024))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return ["".join(letter if letter.isprintable() else " " for letter in line) for line in lines[-count:]]
