"""Draining a node: saying what moves, what cannot and why, and waiting until nothing is left."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpupool.core.errors import ConflictError, DeadlineError

if TYPE_CHECKING:
    from gpupool.contracts.control_client import ControlClient
    from gpupool.contracts.nodes import DrainView

_LOOK_SECONDS: Final = 5.0


def lines_of(view: "DrainView") -> list[str]:
    """Return what is still on a node, a line a deployment, with the newest word on each."""
    return [f"{item.workload} ({item.placement_id}): {item.detail}" for item in view.left]


def wait_drained(
    client: "ControlClient", name: str, timeout: float, say: Callable[[str], None]
) -> "DrainView":
    """Return the last view once nothing is left on a node; ``say`` each thing once, as it changes.

    Raises DeadlineError after ``timeout`` seconds, ConflictError when somebody has undrained the node meanwhile.
    """
    deadline = time.monotonic() + timeout
    seen = client.pool().last_event_seq
    told: set[str] = set()
    while True:
        view = client.drain_state(name)
        lines = lines_of(view)
        for line in lines:
            if line not in told:
                say(line)
        told |= set(lines)
        if not view.draining:
            raise ConflictError(f"{name} is not being drained any more.", remedy="See `gpupool events`.")
        if not view.left:
            return view
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError(
                f"{name} still runs {len(view.left)} deployment(s) after {timeout:g} s: {'; '.join(lines)}.",
                remedy="It goes on draining: make room elsewhere, wait longer, or end them with"
                f" `gpupool node remove {name} --yes`; `gpupool node undrain {name}` takes it back.",
            )
        news = client.events(after=seen, limit=1000, wait=min(left, _LOOK_SECONDS))
        seen = max([seen, *(event.seq for event in news)])
