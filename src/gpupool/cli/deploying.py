"""Reading a spec from a file, and waiting until what it asks for is there."""

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpupool.contracts.spec import MAX_SPEC_BYTES, SpecFile, parse_spec
from gpupool.core.errors import ConflictError, DeadlineError, GpupoolError, InvalidInputError, NotFoundError
from gpupool.fleet.placements import PlacementState

if TYPE_CHECKING:
    from gpupool.contracts.control import PlacementView, WorkloadView
    from gpupool.contracts.control_client import ControlClient


class NeverPlacedError(ConflictError):
    """No node of the pool can ever take the workload."""

    code = "never_placed"
    default_remedy = "Change what it asks for, or add a node that can take it."


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

    Raises ChuteFailedError when a deployment other than the ``known`` ones has failed, NeverPlacedError when no node
    can ever take it, DeadlineError after ``timeout`` seconds.
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
        _refuse_failed(client, name, mine)
        if not workload.live:
            _refuse_impossible(client, workload)
        news = f"{mine[0].state.value} on {mine[0].node}" if mine else workload.why or "waiting for a node"
        if news != last:
            say(f"{name}: {news}")
            last = news
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError(
                f"{name} is not active after {timeout:g} s: {news}.",
                remedy=f"See `gpupool chute show {name}`; {stays(name)}.",
            )
        seen = _next_change(client, seen, min(left, 5.0))


def stays(name: str) -> str:
    """Say that what was deployed is still wanted, and how to take it back."""
    return f"{name} stays wanted; `gpupool chute delete {name}` takes it back"


def _refuse_impossible(client: "ControlClient", workload: "WorkloadView") -> None:
    from gpupool.cli.prospects import never

    name = workload.name
    told = client.why(name)
    if told.would_go_to is not None:
        return
    why = never(workload.spec, client.nodes(), client.devices(), told.refusals)
    if why is not None:
        raise NeverPlacedError(
            f"No node of this pool can ever take {name}: {why}.",
            remedy=f"Change what it asks for, or add a node that can take it; {stays(name)}.",
        )


def _refuse_failed(client: "ControlClient", name: str, placements: "list[PlacementView]") -> None:
    failed = next((p for p in placements if p.state is PlacementState.FAILED), None)
    if failed is not None:
        first = failure_remedy(name, failed.reason or "", wrote=_wrote(client, failed.id))
        raise ChuteFailedError(
            f"{name} failed on {failed.node}: {(failed.reason or 'no reason given').rstrip('.')}.",
            remedy=f"{first}; the pool goes on trying with growing pauses.",
        )


def failure_remedy(name: str, reason: str, *, wrote: bool) -> str:
    """Return what to do about a deployment that failed; ``wrote``: whether it has left any output."""
    if reason.startswith("launch:"):
        return "Correct the command in the spec and deploy again"
    if reason.startswith("memory:"):
        return "Raise `memory_mb` in the spec and deploy again"
    if reason.startswith("unhealthy:") and re.search(r"\b404\b", reason):
        return "Check `health` in the spec: the app answers, but not at that path"
    if wrote:
        return f"Read its output with `gpupool chute logs {name}`"
    return f"It has written nothing; see `gpupool chute show {name}` and the command in its spec"


def _wrote(client: "ControlClient", placement_id: str) -> bool:
    with suppress(GpupoolError):
        return bool(client.logs(placement_id, 1))
    return False


def failed_ids(workload: "WorkloadView") -> frozenset[str]:
    """Return the deployments that have failed already, to tell them from those that fail next."""
    return frozenset(p.id for p in workload.placements if p.state is PlacementState.FAILED)


def _next_change(client: "ControlClient", seen: int, seconds: float) -> int:
    """Wait until something happens in the pool, at most ``seconds``; return the number of the newest event seen."""
    newest = client.events(after=seen, limit=1000, wait=seconds)
    return newest[-1].seq if newest else seen
