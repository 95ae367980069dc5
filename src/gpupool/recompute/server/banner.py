"""The lines a server prints when it starts and for each request, as operators of the original look for them."""

import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpupool.recompute.server.capacity import ThreadCount


def device_lines(
    threads: ThreadCount,
    cards: Iterable[tuple[str, int, int]],
    devices: Iterable[tuple[str, str]],
    notices: Iterable[str] = (),
) -> list[str]:
    """Return the lines before the server listens.

    ``cards``: of each maker its name, how many of its cards are used, and how many there are. ``devices``: name and
    engine of everything that computes. ``notices``: lines of ours, where something asked for is not done.
    """
    cpu = f"Using {threads.shown} / {threads.cores} CPU threads"
    counts = [
        f"[chiapos] Using {used} / {found} {maker} devices"
        for maker, used, found in cards
        if found or maker == "CUDA"
    ]
    return [
        f"[chiapos] {cpu}",
        *counts,
        cpu,
        *(f"Using {name} ({engine})" for name, engine in devices),
        *notices,
    ]


def listening_line(host: str, port: int) -> str:
    """Return the line that says the server can be reached."""
    return f"ReComputeServer listening on {host} port {port}"


def request_line(
    epoch_ms: int,
    client: str,
    plot: tuple[int, int] | None,
    ms: float,
    *,
    engine: str,
    result: str,
    request_id: str,
    used_gpu: bool = False,
    letter: str = "C",
) -> str:
    """Return the line of one request that has ended.

    ``plot``: k and level, None where the request could not be read; ``letter``: C where that is a level, S where it
    is the strength of a v2 plot. ``result``: ok, or the code of the error. What
    the original does not print stands at the end, so that a script that reads its lines reads these too.
    """
    k, level = ("?", "?") if plot is None else plot
    return (
        f"[{epoch_ms}] Request from {client} for K{k} {letter}{level} took {ms:.3f} ms (used_gpu = {int(used_gpu)},"
        f" is_fail = {int(result != 'ok')}, engine = {engine}, result = {result}, id = {request_id})"
    )


def say(*lines: str) -> None:
    """Write lines where the original writes them, at once; a reader that has left is no reason to fail."""
    with suppress(BrokenPipeError):
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()


def processor_name() -> str:
    """Return the processor's name as the kernel tells it, else its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
