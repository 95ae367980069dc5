"""The lines a server prints when it starts, word for word what operators of the original look for."""

import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpupool.recompute.server.capacity import ThreadCount


def device_lines(
    threads: ThreadCount, cuda_found: int, devices: Iterable[tuple[str, str]], notice: str | None
) -> list[str]:
    """Return the lines before the server listens.

    ``devices``: name and engine of everything that computes. ``notice``: a line of ours, where something asked for
    is not done.
    """
    cpu = f"Using {threads.shown} / {threads.cores} CPU threads"
    lines = [f"[chiapos] {cpu}", f"[chiapos] Using 0 / {cuda_found} CUDA devices", cpu]
    lines += [f"Using {name} ({engine})" for name, engine in devices]
    return lines if notice is None else [*lines, notice]


def listening_line(host: str, port: int) -> str:
    """Return the line that says the server can be reached."""
    return f"ReComputeServer listening on {host} port {port}"


def processor_name() -> str:
    """Return the processor's name as the kernel tells it, else its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
