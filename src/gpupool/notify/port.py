"""The port: a message for people, and something that takes it to them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gpupool.core.errors import UnavailableError
from gpupool.core.ids import new_id

Tone = Literal["info", "success", "warning", "failure"]
"""How a message is coloured where messages have colours."""


class NotDeliveredError(UnavailableError):
    """The message was not taken."""

    code = "not_delivered"
    default_remedy = "Check this target in alerts.yaml, then try it with `gpupool alerts test`."


@dataclass(frozen=True, slots=True)
class Note:
    """One message for people."""

    title: str
    """One line."""
    text: str
    """A few lines."""
    tone: Tone = "warning"
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs; JSON-ready."""

    def as_json(self) -> bytes:
        """Return everything as one line of JSON, for programs."""
        return json.dumps({**self.facts, "title": self.title, "text": self.text}).encode() + b"\n"


class Notifier(Protocol):
    """Takes messages to people."""

    name: str
    """What it is, for people: no more of an address than its host or its service."""

    async def send(self, note: Note) -> None:
        """Deliver; raise NotDeliveredError, saying why without any secret, where that fails or takes too long."""
        ...


def trial_note(where: str) -> Note:
    """Return a message that only shows that messages arrive; ``where``: what sends it."""
    return Note(
        title=f"gpupool {where}: test",
        text="This is a test of the alerts. Nothing is wrong.",
        tone="info",
        facts={"version": 1, "id": new_id("ev"), "test": True, "pool": where, "events": []},
    )
