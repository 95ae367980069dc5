"""The sharing port: what several controls on one database agree on besides the pool's state.

One of them leads; each says that it lives, whom it has heard, and which signed requests it has taken. All times are
spans in seconds, measured by the database's clock, since the controls' own need not agree. Nothing here waits for a
writer's turn: a writer that is paused must not cost the leader its lease.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One control."""

    instance_id: str
    url: str
    """Where the other controls reach it."""
    host: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A control that starts."""

    me: Replica
    keys: str
    """Digest of its keys and tokens, which all controls must have in common."""
    predecessor: str | None = None
    """An earlier run known to be dead, whose place and lease are given up at once."""
    settle_seconds: float = 0.0
    """How long nodes are waited for where no other control lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What a control finds when it starts."""

    first: bool
    """No other control lives."""
    settling: float
    """Seconds for which nodes of the last run are still waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReplica:
    """One control, as the database knows it."""

    replica: Replica
    up: float
    """Seconds since it started."""
    silent: float
    """Seconds since it last said that it lives."""
    leads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """When somebody (a node, a follower of the feed) was heard by whichever control."""

    silent: float
    """Seconds since then."""
    known: float
    """Seconds since it was heard for the first time."""
    replica: str
    """Where it listens for commands, else who heard it last."""
    linked: bool
    """Whether it listens there, and that control lives."""


class Sharing(Protocol):
    """What controls share. Errors of the database end here, as StorageError."""

    async def enter(self, entry: Entry) -> Entered:
        """Count as living from now on.

        Raises ConflictError where another control lives that has other keys, or the same instance id.
        """
        ...

    async def renew(self, me: Replica) -> None:
        """Say that this control lives."""
        ...

    async def leave(self, me: Replica) -> None:
        """Stop counting as living, and give the lease back."""
        ...

    async def replicas(self) -> Sequence[SeenReplica]:
        """Return the controls that live, and those that ended without a word within the last day; oldest first."""
        ...

    async def lead(self, holder: str) -> int | None:
        """Take the lease where nobody holds it, or renew it; return its epoch, None where another holds it."""
        ...

    async def note_heard(self, replica: str, subjects: Mapping[str, bool]) -> None:
        """Note that these were heard just now; the value says whether they listen for commands here."""
        ...

    async def note_unlinked(self, replica: str, subjects: Collection[str]) -> None:
        """Note that these do not listen for commands here any more."""
        ...

    async def heard(self, within: float | None = None) -> Mapping[str, Hearing]:
        """Return everybody who was heard in the last ``within`` seconds, a day where left out, by any control."""
        ...

    async def admit(self, nonces: Collection[tuple[str, str, int]]) -> Collection[tuple[str, str, int]]:
        """Remember nonces (node, nonce, Unix time) and return those that no control has taken before."""
        ...

    async def forget_nonces(self, before: int) -> None:
        """Forget nonces whose time (Unix) is past, since that alone keeps them out."""
        ...

    async def close(self) -> None:
        """Give back every connection."""
        ...
