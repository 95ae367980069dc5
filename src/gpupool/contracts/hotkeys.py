"""The control API's messages about hotkeys that may ask it."""

from datetime import datetime
from typing import Annotated

from pydantic import StringConstraints

from gpupool.contracts.base import Input, Message, Name
from gpupool.fleet.api_tokens import Role

Address = Annotated[str, StringConstraints(pattern=r"^[1-9A-HJ-NP-Za-km-z]{46,49}$")]
"""SS58; whether its checksum is right is seen later."""


class HotkeyRequest(Input):
    """Lets a hotkey ask control."""

    address: Address
    name: Name
    """Of the person; events carry it."""
    role: Role = Role.OPERATOR


class HotkeyView(Message):
    """A hotkey that may ask control."""

    address: Address
    name: Name
    role: Role
    created_by: str | None
    created_at: datetime
