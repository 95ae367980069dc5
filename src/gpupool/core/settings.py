"""Settings that every long-running process shares; each process adds its own in a subclass.

Sources, strongest first: arguments given by the command line, ``GPUPOOL_*`` environment variables, defaults.
"""

from pathlib import Path
from typing import Literal

from pydantic_settings import BaseSettings, SettingsConfigDict

from gpupool.core.home import Home


class ProcessSettings(BaseSettings):
    """What every process of the pool can be told."""

    model_config = SettingsConfigDict(env_prefix="GPUPOOL_", extra="ignore", frozen=True)

    home: Path = Path("/var/lib/gpupool")
    """State folder."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """How much is logged."""
    instance_id: str = ""
    """Names this very process in ``/healthz``; set by whoever starts it, so that a stranger's 200 is not ours."""

    @property
    def folders(self) -> Home:
        """The layout of the state folder."""
        return Home(self.home)
