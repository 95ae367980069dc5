"""Hotkeys of people: sr25519 keys under which they ask control, each with a role, as an API token has one.

What is kept of one is public. Whoever holds the secret half signs each request, so nothing that could be stolen here
opens anything.
"""

from dataclasses import dataclass
from datetime import datetime

from gpupool.fleet.api_tokens import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorHotkey:
    """A hotkey that may ask control, as it is kept."""

    address: str
    """The public half in SS58; there is one record of it."""
    name: str
    """Of the person, unique among hotkeys; events carry it."""
    role: Role
    created_by: str | None = None
    created_at: datetime
