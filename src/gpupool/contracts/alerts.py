"""The control API's messages about alarms: what is wrong, who is told, how that went, and silences."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from gpupool.contracts.base import Id, Input, Message, Name
from gpupool.fleet.alarms import Severity

LONGEST_SILENCE_SECONDS: Final = 366 * 86_400
_Line = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")]


class AlarmView(Message):
    """Something that is wrong, or was until people have been told of its end."""

    rule: str
    title: str
    """The rule in words."""
    subject: Id
    label: str
    severity: Severity
    why: str
    since: datetime
    until: datetime | None
    """When it was over; None while it lasts."""
    told_at: datetime | None
    """When people were last told that it lasts; None before the first time."""
    silenced_by: list[Id]
    """Silences that cover it now."""


class SilenceRequest(Input):
    """Tell nothing of some alarms for a while."""

    pattern: Annotated[_Line, StringConstraints(max_length=200)]
    """A name or id of what is wrong, a rule, or ``rule/name``; ``*``, ``?`` and ``[…]`` as in file names."""
    seconds: Annotated[float, Field(ge=1, le=LONGEST_SILENCE_SECONDS)]
    why: Annotated[_Line, StringConstraints(max_length=500)]
    by: Annotated[_Line, StringConstraints(max_length=100)]
    """Who says so."""


class SilenceView(Message):
    """A silence that is in force."""

    id: Id
    pattern: str
    until: datetime
    why: str
    by: str
    created_at: datetime
    covers: int
    """Alarms that it covers now."""


class TargetView(Message):
    """Somebody who is told."""

    name: Name
    kind: str
    """How, with no more of an address than its host or its service."""
    least: Severity
    waiting: int
    """Messages that wait for it."""


class DeliveryView(Message):
    """One try to deliver a message."""

    target: Name
    at: datetime
    outcome: str
    """``taken``, ``not_taken`` or ``dropped``."""
    why: str
    seconds: float
    final: bool
    """No further try follows."""


class AlertsView(Message):
    """Alarms, and everything around telling them."""

    alarms: list[AlarmView]
    """Oldest first."""
    targets: list[TargetView]
    deliveries: list[DeliveryView]
    """The latest tries of this run of control, newest last."""


class AlertTestRequest(Input):
    """Send a test message."""

    to: Name | None = None
    """One target; left out, all."""
