"""What the gateway can be told; its own variables begin with ``GPUPOOL_GATEWAY_``."""

from pathlib import Path
from typing import Annotated

from pydantic import AnyHttpUrl, Field, TypeAdapter, field_validator

from gpupool.core.settings import ProcessSettings

_URL = TypeAdapter(AnyHttpUrl)


class GatewaySettings(ProcessSettings):
    """Settings of the gateway process."""

    gateway_host: str = "127.0.0.1"
    """Address to listen on; any that others can reach makes the API key a must."""
    gateway_port: Annotated[int, Field(ge=0, le=65535)] = 32080
    """Port to listen on; 0 takes a free one."""
    gateway_require_key: bool | None = None
    """Whether clients need the API key; left out, only where others than this machine can connect."""
    gateway_silence_seconds: Annotated[float, Field(gt=0, le=86400)] = 300.0
    """How long a model's server may say nothing before it is given up."""
    gateway_drain_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """How long calls under way may go on after the signal to stop."""
    gateway_idle_seconds: Annotated[float, Field(gt=0, le=3600)] = 75.0
    """How long a connection may wait for a request, or take to send its head."""
    gateway_body_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """How long the body of a request may take."""
    gateway_token_file: Path | None = None
    """Bearer token for the feed; left out, ``keys/service.token`` of the state folder."""
    control_url: str = "http://127.0.0.1:32000"
    """Where the endpoints feed is read."""

    @field_validator("control_url")
    @classmethod
    def _an_address(cls, value: str) -> str:
        url = _URL.validate_python(value)
        if url.query or url.fragment or url.username:
            raise ValueError("give scheme, host and port only, such as http://127.0.0.1:32000")
        return value.rstrip("/")

    @property
    def feed_token_file(self) -> Path:
        """The file that holds the bearer token for the feed."""
        return self.gateway_token_file or self.folders.service_token

    @property
    def key_file(self) -> Path:
        """The file that holds the API key; made at the first start that needs it."""
        return self.folders.keys / "gateway.token"
