"""Reading a spec from a file, and waiting until what it asks for is there."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpupool.contracts.spec import MAX_SPEC_BYTES, SpecFile, parse_spec
from gpupool.core.errors import DeadlineError, GpupoolError, InvalidInputError, NotFoundError
from gpupool.fleet.placements import PlacementState

if TYPE_CHECKING:
    from gpupool.contracts.control import PlacementView, WorkloadView
    from gpupool.contracts.control_client import ControlClient


class ChuteFailedError(GpupoolError):
    """The chute does not come up."""

    code = "chute_failed"
    exit_code = 5
    default_remedy = (
        "Read its output with `gpupool chute logs NAME`; the pool goes on trying with growing pauses."
    )


def read_spec(file: Path) -> SpecFile:
    """Return the spec in ``file`` (``-`` is standard input); raise errors that name file, line and column."""
    source = "standard input" if str(file) == "-" else str(file)
    try:
        if str(file) == "-":
            raw = sys.stdin.buffer.read(MAX_SPEC_BYTES + 1)
        else:
            with file.open("rb") as opened:
                raw = opened.read(MAX_SPEC_BYTES + 1)
        return parse_spec(raw.decode(), source)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {file}.", remedy="Check the path of the spec.") from error
    except OSError as error:
        raise InvalidInputError(f"{source} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{source} is not UTF-8 text (byte {error.start}).") from error


def wait_active(
    client: "ControlClient",
    name: str,
    timeout: float,
    say: Callable[[str], None],
    known: frozenset[str] = frozenset(),
) -> "WorkloadView":
    """Return the workload once as many deployments of its version are active as are wanted; ``say`` what goes on.

    Raises ChuteFailedError when a deployment other than the ``known`` ones has failed, DeadlineError after
    ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    last, seen = "", 0
    while True:
        workload = client.workload(name)
        mine = [p for p in workload.placements if p.version == workload.version and p.id not in known]
        if sum(
            p.state is PlacementState.ACTIVE for p in workload.placements if p.version == workload.version
        ) >= (workload.wanted):
            return workload
        _refuse_failed(name, mine)
        news = f"{mine[0].state.value} on {mine[0].node}" if mine else workload.why or "waiting for a node"
        if news != last:
            say(f"{name}: {news}")
            last = news
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError(
                f"{name} is not active after {timeout:g} s: {news}.",
                remedy=f"See `gpupool chute show {name}`.",
            )
        seen = _next_change(client, seen, min(left, 5.0))


def _refuse_failed(name: str, placements: "list[PlacementView]") -> None:
    failed = next((p for p in placements if p.state is PlacementState.FAILED), None)
    if failed is not None:
        raise ChuteFailedError(
            f"{name} failed on {failed.node}: {failed.reason}.",
            remedy=f"Read its output with `gpupool chute logs {name}`; the pool goes on trying with growing pauses.",
        )


def failed_ids(workload: "WorkloadView") -> frozenset[str]:
    """Return the deployments that have failed already, to tell them from those that fail next."""
    return frozenset(p.id for p in workload.placements if p.state is PlacementState.FAILED)


def _next_change(client: "ControlClient", seen: int, seconds: float) -> int:
    """Wait until something happens in the pool, at most ``seconds``; return the number of the newest event seen."""
    newest = client.events(after=seen, limit=1000, wait=seconds)
    return newest[-1].seq if newest else seen


def latest_output(client: "ControlClient", name: str, lines: int) -> str:
    """Return the last ``lines`` of the newest deployment that has written anything; raise NotFoundError without one."""
    workload = client.workload(name)
    for placement in workload.placements:
        with suppress(NotFoundError):
            output = client.logs(placement.id, lines)
            if output:
                return output
    raise NotFoundError(
        f"No deployment of {name} has written anything.",
        remedy=f"See what it does with `gpupool chute show {name}`.",
    )
