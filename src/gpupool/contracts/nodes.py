"""The control API's messages about the life of a node: join tokens, what a person sets, draining."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from gpupool.contracts.base import Id, Input, Message, Name
from gpupool.fleet.placements import PlacementState

Region = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,38}[a-z0-9])?$")]
"""1-40 characters: lower-case letters, digits, and inner dots, hyphens and underscores."""
HourlyUsd = Annotated[float, Field(ge=0, le=10_000)]
ShortRef = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,40}$")]
"""A model of the catalog."""
MOST_USES = 1000
MOST_HOURS = 24 * 30


class InviteRequest(Input):
    """Lets a machine become a node."""

    name: Name | None = None
    """The node's name; left out, the machine brings its own."""
    hourly_usd: HourlyUsd | None = None
    region: Region | None = None
    short_ref: ShortRef | None = None
    """GPU model that the machine has, as the catalog calls it."""
    uses: Annotated[int, Field(ge=1, le=MOST_USES)] = 1
    """Machines that may join with it."""
    valid_hours: Annotated[float, Field(gt=0, le=MOST_HOURS)] = 24.0

    @model_validator(mode="after")
    def _one_machine_has_one_name(self) -> "InviteRequest":
        if self.name is not None and self.uses != 1:
            raise ValueError("a token for a node of that name is worth one join: give uses or a name")
        return self


class JoinTokenView(Message):
    """A join token; what it is made of is shown once only, when it is minted."""

    id: Id
    name: Name | None
    hourly_usd: float | None
    region: str | None
    short_ref: str | None
    uses: int
    used: int
    usable: bool
    why_not: str | None
    created_by: str | None
    created_at: datetime
    expires_at: datetime


class InviteReply(JoinTokenView):
    """A join token just minted."""

    token: str
    """The secret; it is shown this once."""


class NodeSettings(Input):
    """What a person sets of a node. A field left out stays; null takes back what was set."""

    hourly_usd: HourlyUsd | None = None
    region: Region | None = None


class DrainItem(Message):
    """A deployment that is still on a draining node."""

    placement_id: Id
    workload: Name
    state: PlacementState
    movable: bool
    """False where no other node takes it as things stand: it stays until one does."""
    detail: str
    """What it waits for."""


class DrainView(Message):
    """How far a node is drained."""

    node: Name
    draining: bool
    left: list[DrainItem]
    """Empty once the node runs nothing."""
