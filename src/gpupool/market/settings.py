"""What the embedded market can be told; its own variables begin with ``GPUPOOL_MARKET_``."""

from typing import Annotated

from pydantic import Field, field_validator

from gpupool.core.settings import ProcessSettings
from gpupool.validators.hotkeys import public_of


class MarketSettings(ProcessSettings):
    """Settings of the market process."""

    market_host: str = "127.0.0.1"
    """Address to listen on."""
    market_port: Annotated[int, Field(ge=0, le=65535)] = 32010
    """Port to listen on; 0 takes a free one."""
    market_url: str | None = None
    """Where miners and their instances reach it; left out, the address that it listens on."""
    market_miners: str = ""
    """Hotkeys (SS58) that may take part, between commas; left out, every hotkey may."""

    @field_validator("market_miners")
    @classmethod
    def _addresses(cls, value: str) -> str:
        for address in filter(None, (part.strip() for part in value.split(","))):
            public_of(address)
        return value

    @property
    def miners(self) -> frozenset[str]:
        """The hotkeys that may take part."""
        return frozenset(filter(None, (part.strip() for part in self.market_miners.split(","))))
