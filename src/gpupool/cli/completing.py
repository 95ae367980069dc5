"""What a shell offers when Tab is pressed after a name: the names that the pool has right now.

A shell waits meanwhile, and nothing may be printed: an answer that does not come at once, or does not come at all, is
no completion.
"""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from gpupool.core.errors import GpupoolError

if TYPE_CHECKING:
    from gpupool.contracts.control_client import ControlClient

_SECONDS: Final = 1.0


def node_names(incomplete: str) -> list[str]:
    """Return the nodes whose names begin so."""
    return _beginning(incomplete, lambda client: (node.name for node in client.nodes()))


def chute_names(incomplete: str) -> list[str]:
    """Return the workloads whose names begin so."""
    return _beginning(incomplete, lambda client: (workload.name for workload in client.workloads()))


def deployment_ids(incomplete: str) -> list[str]:
    """Return the live deployments whose ids begin so."""
    return _beginning(incomplete, lambda client: (found.id for found in client.placements(live=True)))


def _beginning(incomplete: str, ask: "Callable[[ControlClient], Iterable[str]]") -> list[str]:
    from gpupool.cli.connect import URL_VARIABLE, connect

    try:
        with connect(os.environ.get(URL_VARIABLE), answer_seconds=_SECONDS) as client:
            return sorted(name for name in ask(client) if name.startswith(incomplete))
    except GpupoolError:
        return []
