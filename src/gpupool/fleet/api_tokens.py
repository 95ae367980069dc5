"""API tokens: who may ask control for what.

Only a digest is kept, so that whoever reads the database can ask for nothing. A token is made for one person or
program, under a name that the events of what it changes carry, and never more than its role allows.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

PREFIX: Final = "gpa_"
"""Begins every token, so that one that leaks is recognised for what it is."""


class Role(StrEnum):
    """What a token may do; each may also do what those before it may."""

    VIEWER = "viewer"
    """Read everything but tokens, the output of workloads included."""
    OPERATOR = "operator"
    """Change what runs, and which nodes there are."""
    ADMIN = "admin"
    """Make and revoke tokens."""

    @property
    def rank(self) -> int:
        """The place in the order of roles, from 0."""
        return list(Role).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """A token, as it is kept."""

    id: str
    name: str
    """Of the person or program that it is for; unique among those that are not revoked."""
    digest: str
    """SHA-256 of the token, in hex: it is random enough to need no salt."""
    role: Role
    revoked: bool = False
    created_by: str | None = None
    created_at: datetime
    expires_at: datetime | None = None

    def refusal(self, now: datetime) -> str | None:
        """Return why it opens nothing now; None when it does."""
        if self.revoked:
            return "was revoked"
        if self.expires_at is not None and now >= self.expires_at:
            return f"expired at {self.expires_at:%Y-%m-%d %H:%M} UTC"
        return None


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
