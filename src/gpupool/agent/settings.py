"""What an agent can be told."""

import re
import socket
from pathlib import Path
from typing import Annotated, Self

from pydantic import AnyHttpUrl, Field, SecretStr, TypeAdapter, field_validator, model_validator

from gpupool.agent.backoff import MOST_SECONDS
from gpupool.contracts.agent_link import HEARTBEAT_SECONDS
from gpupool.contracts.base import Name
from gpupool.core.settings import ProcessSettings

_URL = TypeAdapter(AnyHttpUrl)


def default_node_name() -> str:
    """Return this machine's host name, made fit for a node's name."""
    short = socket.gethostname().split(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", short)[:63].strip("-") or "node"


class AgentSettings(ProcessSettings):
    """Settings of one agent, each also an environment variable ``GPUPOOL_<NAME>``."""

    control_url: str = "http://127.0.0.1:32000"
    """Where control listens."""
    node_name: Name = Field(default_factory=default_node_name)
    """The node's name in the pool; left out, the machine's host name."""
    node_address: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:_-]{1,253}$")] = "127.0.0.1"
    """Where gateway and proxy reach this node; the default keeps it to this machine."""
    workload_host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:_-]{0,253}$")] = ""
    """Where workloads listen, if not on ``node_address``; for a node behind an address that is not its own."""
    workload_paths: Annotated[str, Field(pattern=r"^(/[^:\x00]*(:/[^:\x00]*)*)?$", max_length=8192)] = ""
    """Folders, joined by colons, that every workload may read besides the system's and Python's: own code, models."""
    join_token_file: Path | None = None
    """File with the token that lets a node join; left out, ``keys/join.token`` in the state folder."""
    join_token: SecretStr | None = None
    """The join token itself, as `gpupool node add` prints it; stronger than the file."""
    hourly_usd: Annotated[float, Field(ge=0, le=10_000)] | None = None
    """What this node costs its owner an hour."""
    machine_identity: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,40}$")] = ""
    """Replaces the machine's own id in the name of its cpu device; for several nodes on one machine."""
    stand_in_gpus: Annotated[int, Field(ge=0, le=10)] = 0
    """Development mode: so many GPUs are made up of this CPU, and labelled so."""
    stand_in_model: Annotated[str, Field(pattern=r"^[a-z0-9_]{0,40}$")] = ""
    """Development mode: the catalog model (short ref) that the CPU stands in for."""
    heartbeat_seconds: Annotated[float, Field(gt=0, le=60)] = HEARTBEAT_SECONDS
    """How often the agent says that it lives when it has nothing else to say; well below control's silence limit."""
    retry_seconds: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = MOST_SECONDS
    """The longest pause between two attempts to reach control; many agents on one control need a long one."""
    alert_urls: SecretStr | None = None
    """Whom to tell when control dies, besides ``alerts.yaml``: Apprise addresses between blanks."""
    stop_grace_seconds: Annotated[float, Field(ge=0, le=600)] = 10.0
    """The longest grace that a workload gets when the agent itself is told to stop."""

    @field_validator("control_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        url = _URL.validate_python(value)
        if url.query or url.fragment or url.username or url.path not in {None, "", "/"}:
            raise ValueError("give scheme, host and port only, such as http://127.0.0.1:32000")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _stand_in_is_whole(self) -> Self:
        if bool(self.stand_in_gpus) != bool(self.stand_in_model):
            raise ValueError("development mode needs both stand_in_gpus and stand_in_model")
        return self

    @property
    def listen_host(self) -> str:
        """Where workloads listen."""
        return self.workload_host or self.node_address

    @property
    def readable(self) -> tuple[Path, ...]:
        """The folders of ``workload_paths``."""
        return tuple(Path(part) for part in self.workload_paths.split(":") if part)

    @property
    def join_token_path(self) -> Path:
        """Where the join token is kept."""
        return self.join_token_file or self.folders.join_token

    @property
    def runs(self) -> Path:
        """Where the run records are kept."""
        return self.folders.agent / "runs"
