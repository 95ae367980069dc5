"""The two workloads that ``up`` deploys: the demo chute and this machine's recompute server."""

import os
from importlib.resources import files
from typing import Final

from gpupool.contracts.spec import SpecFile, parse_spec
from gpupool.core.errors import NotFoundError

RECOMPUTE_NAME: Final = "recompute"


def demo_spec() -> SpecFile:
    """Return the spec of the demo chute that ships with the package."""
    source = files("gpupool") / "engines" / "specs" / "demo.yaml"
    try:
        return parse_spec(source.read_text(encoding="utf-8"), "demo.yaml")
    except FileNotFoundError as error:
        raise NotFoundError(
            "The demo's spec is missing from the installation.", remedy="Install gpupool anew."
        ) from error


def recompute_spec(port: int) -> SpecFile:
    """Return the spec of a recompute server on ``port``, one thread per core that this process may use."""
    threads = len(os.sched_getaffinity(0))
    return SpecFile(
        name=RECOMPUTE_NAME,
        kind="recompute",
        command=[
            *("python", "-m", "gpupool", "recompute", "serve"),
            *("--host", "{host}", "--port", "{port}", "--threads", str(threads)),
        ],
        port=port,
        health="/readyz",
        concurrency=threads,
        memory_mb=1024,
        start_timeout=180,
    )
