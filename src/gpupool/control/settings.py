"""The settings of control; each is also an environment variable ``GPUPOOL_<NAME>``."""

from typing import Annotated, Any

from pydantic import Field, ValidationError

from gpupool.contracts.problems import describe
from gpupool.core.errors import InvalidInputError
from gpupool.core.settings import ProcessSettings


class ControlSettings(ProcessSettings):
    """What control can be told."""

    control_host: str = "127.0.0.1"
    """Address to listen on; loopback unless agents on other machines must reach it."""
    control_port: Annotated[int, Field(ge=0, le=65535)] = 32000
    """Port to listen on; 0 takes a free one, which the process record names."""


def load_settings(**given: Any) -> ControlSettings:
    """Return the settings from arguments (None = not given), environment and defaults.

    Raises InvalidInputError naming the setting that is wrong.
    """
    try:
        return ControlSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise InvalidInputError(describe(error)) from error
