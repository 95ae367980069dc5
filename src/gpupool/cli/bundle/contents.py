"""What goes into the bundle, file by file, before secrets are removed."""

import json
import os
import platform
import stat
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from gpupool import __version__
from gpupool.cli.bundle.redaction import REMOVED, without_values
from gpupool.cli.local import LocalProcess, local_processes
from gpupool.cli.up.leftovers import MARK
from gpupool.core.errors import GpupoolError
from gpupool.core.files import read_json
from gpupool.core.home import Home
from gpupool.core.processes import marked
from gpupool.core.secret_names import is_secret_name

MOST_TAIL: Final = 1024 * 1024
OVERLAP: Final = 4096
"""Read before the tail and dropped after the cleaning, so that no half of a secret stands at its beginning."""
_PREFIXES: Final = ("GPUPOOL_", "CHIAPOS_")


def as_json(value: object) -> bytes:
    """Return a value as readable JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False, default=str).encode(errors="replace") + b"\n"


def versions() -> bytes:
    """Return what is installed here."""
    packages = {item.metadata["Name"]: item.version for item in distributions()}
    return as_json(
        {
            "gpupool": __version__,
            "python": sys.version,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "packages": dict(sorted(packages.items())),
        }
    )


def settings(environment: Mapping[str, str]) -> bytes:
    """Return our own environment variables, those that hold a secret without their value."""
    ours = {name: value for name, value in sorted(environment.items()) if name.startswith(_PREFIXES)}
    return as_json({name: REMOVED if is_secret_name(name) else value for name, value in ours.items()})


def findings(home: Home, environment: Mapping[str, str]) -> bytes:
    """Return what ``gpupool doctor`` finds."""
    from gpupool.cli.checks.all import run_checks

    return as_json([finding.to_json() for finding in run_checks(home, environment)])


def processes(home: Home) -> bytes:
    """Return what the records name, and every process that carries our mark with its command and memory."""
    told: list[LocalProcess] = local_processes(home)
    pids = {process.pid for process in marked(MARK, str(home.root))}
    pids |= {process.pid for process in told if process.pid is not None and process.exists}
    return as_json(
        {
            "records": [process.to_json() for process in told],
            "processes": [found for pid in sorted(pids) if (found := _process(pid)) is not None],
        }
    )


def database(home: Home) -> bytes:
    """Return schema and row counts of the database, never its content."""
    from gpupool.store.looking import row_counts, untouched
    from gpupool.store.schema import inspect

    if not home.database.exists():
        return as_json({"database": "none"})
    in_use = any(p.kind == "pool" and p.name == "control" and p.exists for p in local_processes(home))
    sizes = {path.name: path.stat().st_size for path in sorted(home.data.iterdir())}
    try:
        with untouched(home.database, in_use=in_use) as path:
            schema = inspect(path)
            facts: dict[str, Any] = {"schema": schema.standing.value, "revision": schema.revision}
            facts["rows"] = row_counts(path)
    except GpupoolError as error:
        facts = {"error": error.message}
    return as_json({**facts, "bytes": sizes})


def run_records(home: Home) -> Iterator[tuple[str, bytes]]:
    """Yield every run record, with the values of its variables removed."""
    for path in sorted((home.agent / "runs").glob("*/record.json")):
        try:
            value = read_json(path)
        except OSError as error:
            yield f"runs/{path.parent.name}/record.json", as_json({"error": str(error)})
            continue
        if isinstance(value, dict) and isinstance(value.get("order"), dict):
            variables = value["order"].get("env")
            value["order"]["env"] = without_values(variables) if isinstance(variables, dict) else {}
            yield f"runs/{path.parent.name}/record.json", as_json(value)


def log_files(home: Home) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the logs of our processes, then of the output of workloads."""
    yield from ((f"logs/{path.name}", path) for path in sorted(home.logs.glob("*")))
    for path in sorted((home.agent / "runs").glob("*/output.log*")):
        yield f"runs/{path.parent.name}/{path.name}", path


def end_of(path: Path) -> tuple[bytes, bool]:
    """Return the end of a regular file, and whether something before it was left out; links are not followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return b"(not a file)\n", False
        begin = max(0, found.st_size - MOST_TAIL - OVERLAP)
        file.seek(begin)
        return file.read(MOST_TAIL + OVERLAP), begin > 0


def cut(content: bytes) -> bytes:
    """Return cleaned content without its first, perhaps broken, line and at most 1 MiB of it."""
    newline = content.find(b"\n", 0, OVERLAP)
    return content[newline + 1 if newline >= 0 else OVERLAP :][-MOST_TAIL:]


def _process(pid: int) -> dict[str, Any] | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
    except OSError:
        return None
    return {
        "pid": pid,
        "command": [part.decode(errors="replace") for part in command],
        "state": status.get("State", "").strip(),
        "memory": status.get("VmRSS", "").strip(),
        "threads": status.get("Threads", "").strip(),
    }
