"""The control API's messages about API tokens."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from gpupool.contracts.base import Id, Input, Message, Name
from gpupool.fleet.api_tokens import Role

MOST_DAYS = 3660.0


class ApiTokenRequest(Input):
    """Asks for a token."""

    name: Name
    """Of the person or program that it is for; events carry it."""
    role: Role
    valid_days: Annotated[float, Field(gt=0, le=MOST_DAYS)] | None = 90.0
    """None: until it is revoked."""


class ApiTokenView(Message):
    """A token; what it is made of is shown once only, when it is made."""

    id: Id
    name: Name
    role: Role
    usable: bool
    why_not: str | None
    created_by: str | None
    created_at: datetime
    expires_at: datetime | None


class ApiTokenReply(ApiTokenView):
    """A token just made."""

    token: str
    """The secret; it is shown this once."""
