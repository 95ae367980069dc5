"""The port: a message for people, and something that takes it to them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gpupool.core.errors import UnavailableError

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
