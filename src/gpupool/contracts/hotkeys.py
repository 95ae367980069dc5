"""The control API's messages about hotkeys that may ask it."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from gpupool.contracts.base import Input, Message, Name
from gpupool.fleet.api_tokens import Role

Address = Annotated[str, StringConstraints(pattern=r"^[1-9A-HJ-NP-Za-km-z]{46,49}$")]
"""SS58; whether its checksum is right is seen later."""


def _below_admin(role: Role) -> Role:
    # What it signs says neither method nor path, so nothing that rules over access hangs on it.
    if role is Role.ADMIN:
        raise ValueError("a hotkey may be viewer or operator; an admin has an API token")
    return role


class HotkeyRequest(Input):
    """Lets a hotkey ask control."""

    address: Address
    name: Name
    """Of the person; events carry it."""
    role: Annotated[Role, AfterValidator(_below_admin)] = Role.OPERATOR


class HotkeyView(Message):
    """A hotkey that may ask control."""

    address: Address
    name: Name
    role: Role
    created_by: str | None
    created_at: datetime
