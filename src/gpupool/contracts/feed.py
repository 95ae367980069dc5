"""The endpoints feed: one full view of what can be called, followed by long poll.

``GET /v1/endpoints?protocol=P&after=REV&wait=S`` answers at once when the view is newer than ``after``, else as soon
as it is, else after ``wait`` seconds with the same revision. A follower keeps its view unless ``complete`` is true:
a partial or failed read is not news.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from gpupool.contracts.base import Id, Message, Name
from gpupool.fleet.endpoints import EndpointHealth
from gpupool.fleet.workloads import Protocol

FOLLOWER_HEADER: Final = "X-Gpupool-Follower"
"""``protocol.machine`` of who follows the feed: control notices when it stops asking."""


class FeedWorkload(Message):
    """A workload of this protocol, listed also while it has no endpoint (cold start)."""

    id: Id
    name: Name
    models: list[str]
    wanted: int
    state: Literal["active", "starting", "waiting", "off"]
    """active: some endpoint; starting: placed, not ready; waiting: nothing placed (see ``why``); off: none wanted."""
    why: str | None = None
    created_at: float
    """Unix seconds, for OpenAI's model list."""


class FeedEndpoint(Message):
    """Where one live placement can be called."""

    id: Id
    placement: Id
    node: Id
    workload: Id
    models: list[str]
    protocol: Protocol
    address: str
    """``host:port``."""
    tls: bool = False
    """It is asked over TLS; whose certificate counts, and which token it wants, is for its caller to know."""
    state: Literal["active", "draining"]
    health: EndpointHealth
    rate: float | None = None
    weight: float = 1.0
    concurrency: Annotated[int, Field(ge=1)] = 1


class EndpointsView(Message):
    """Everything callable, at one revision."""

    revision: int
    complete: bool = True
    workloads: list[FeedWorkload]
    endpoints: list[FeedEndpoint]
