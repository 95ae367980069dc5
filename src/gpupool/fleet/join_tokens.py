"""Join tokens: what lets a machine that is not known yet become a node.

Only a digest is kept, so that whoever reads the database can join nothing. A token names what the operator knows of
the node beforehand, and is worth a number of joins until a moment.
"""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

PREFIX: Final = "gpj_"
"""Begins every minted token, so that one that leaks is recognised for what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """A minted token, as it is kept."""

    id: str
    digest: str
    """SHA-256 of the token, in hex: it is random enough to need no salt."""
    node_name: str | None = None
    """The node that it is for; None lets any name join."""
    hourly_usd: float | None = None
    region: str | None = None
    short_ref: str | None = None
    """GPU model announced."""
    uses: int = 1
    """Nodes that may join with it."""
    used: int = 0
    revoked: bool = False
    created_by: str | None = None
    created_at: datetime
    expires_at: datetime

    def refusal(self, now: datetime) -> str | None:
        """Return why it lets nobody join now; None when it does."""
        if self.revoked:
            return "was revoked"
        if self.used >= self.uses:
            return "is used up" if self.uses > 1 else "was used already"
        if now >= self.expires_at:
            return f"expired at {self.expires_at:%Y-%m-%d %H:%M} UTC"
        return None

    def spent(self) -> "JoinToken":
        """Return the token after one more join."""
        return replace(self, used=self.used + 1)


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
