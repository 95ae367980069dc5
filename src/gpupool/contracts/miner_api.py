"""The miner API as `chutes-miner-cli` calls it: its names for our things, and only those (chutes.md sections 5.1 and 8)."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from gpupool.contracts.base import Message, Name
from gpupool.contracts.nodes import HourlyUsd, ShortRef


class ServerArgs(Message):
    """What `add-node` says of a machine."""

    name: Name
    validator: Annotated[str, StringConstraints(pattern=r"^[1-9A-HJ-NP-Za-km-z]{46,49}$")]
    """SS58 of the validator that the machine is for."""
    hourly_cost: HourlyUsd
    """Per GPU."""
    gpu_short_ref: ShortRef


class DeviceInfo(Message):
    """A GPU's numbers."""

    uuid: str
    name: str
    memory: int
    """Bytes."""
    clock_rate: float
    """kHz, of the catalog's model; 0 where the card is of none."""
    processors: int
    """Of the catalog's model; 0 where the card is of none."""


class GpuView(Message):
    """A GPU of a server."""

    gpu_id: str
    server_id: str
    deployment_id: str | None
    device_info: DeviceInfo
    model_short_ref: str | None
    verified: bool


class ChuteView(Message):
    """The chute of a deployment."""

    chute_id: str
    name: str
    version: str


class DeploymentView(Message):
    """A deployment on a server."""

    deployment_id: str
    instance_id: str | None = None
    chute_id: str
    server_id: str
    version: str
    host: str
    port: int | None
    active: bool
    stub: bool = False
    job_id: str | None = None
    created_at: datetime
    chute: ChuteView
    gpus: list[str]
    """Ids."""


class ServerView(Message):
    """A node."""

    server_id: str
    name: str
    ip_address: str
    status: str
    created_at: datetime
    gpu_count: int
    cpu_per_gpu: int = 1
    """The least that the protocol knows: nothing here divides a node's cores among its GPUs."""
    memory_per_gpu: int
    """GiB."""
    hourly_cost: float
    """Per GPU; 0 where nobody has told."""
    locked: bool
    gpus: list[GpuView]
    deployments: list[DeploymentView]


class JobView(Message):
    """A job that deleting a server would break."""

    job_id: str
    deployment_id: str | None
    chute_id: str
    created_at: datetime


class PreflightView(Message):
    """What to know before a server is deleted."""

    jobs: list[JobView]


class StartedView(Message):
    """Something that goes on after the answer."""

    status: str = "started"
    detail: str


class PurgedDeployment(Message):
    """A deployment that is ending."""

    deployment_id: str
    chute_id: str
    chute_name: str
    server_id: str
    server_name: str
    gpu_count: int


class PurgeReply(Message):
    """What is ending, to be placed anew."""

    status: str = "initiated"
    deployments_purged: list[PurgedDeployment]


class Progress(Message):
    """One line of `add-node`'s stream."""

    timestamp: str
    message: Annotated[str, Field(max_length=2000)]
