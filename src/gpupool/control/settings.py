"""The settings of control; each is also an environment variable ``GPUPOOL_<NAME>``."""

from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError

from gpupool.contracts.agent_link import SILENCE_LIMIT_SECONDS
from gpupool.contracts.problems import describe
from gpupool.core.errors import InvalidInputError
from gpupool.core.settings import ProcessSettings


class ControlSettings(ProcessSettings):
    """What control can be told."""

    control_host: str = "127.0.0.1"
    """Address to listen on; loopback unless agents on other machines must reach it."""
    control_port: Annotated[int, Field(ge=0, le=65535)] = 32000
    """Port to listen on; 0 takes a free one, which the process record names."""
    control_silence_seconds: Annotated[float, Field(ge=0.5, le=3600)] = SILENCE_LIMIT_SECONDS
    """A node not heard for longer is unreachable; give it several of the agents' heartbeats."""
    control_head_seconds: Annotated[float, Field(gt=0, le=3600)] = 20.0
    """How long a connection may take to send the head of a request."""
    control_body_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """How long the body of a request may take."""
    database_url: SecretStr | None = None
    """``postgresql://USER:PASSWORD@HOST/DATABASE`` instead of the SQLite file in the state folder."""
    control_peer_url: Annotated[str, Field(pattern=r"^(https?://[A-Za-z0-9.:_\[\]-]{1,270})?$")] = ""
    """Where other controls on the same PostgreSQL database reach this one; left out, its host name and port."""
    redis_url: SecretStr | None = None
    """``redis://:PASSWORD@HOST/0``: how controls hear of each other's changes at once; left out, through PostgreSQL."""
    alert_urls: SecretStr | None = None
    """Whom to tell when something dies, besides ``alerts.yaml``: Apprise addresses between blanks."""
    control_lock_seconds: Annotated[float, Field(ge=0, le=600)] = 15.0
    """How long a change waits while another process keeps the database locked."""


def load_settings(**given: Any) -> ControlSettings:
    """Return the settings from arguments (None = not given), environment and defaults.

    Raises InvalidInputError naming the setting that is wrong.
    """
    try:
        return ControlSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise InvalidInputError(describe(error)) from error
