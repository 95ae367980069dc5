"""The port to whoever publishes apps and pays for them: what the pool asks of a validator, and what it does there.

Every list is complete or an error: an adapter never hands over a part of one. Errors are those of `core.errors`:
UnavailableError and DeadlineError (ask again later), BusyError (refused for now, with a time), NoCapacityError (no room
for this app, try another), UnauthorizedError, ForbiddenError, NotFoundError, ConflictError, InvalidInputError.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpupool.fleet.offers import (
    Bounty,
    Capacity,
    Demand,
    GpuModelRule,
    KnownGpu,
    KnownInstance,
    LaunchToken,
    Listing,
    OfferedChute,
    OfferedImage,
    Registration,
    RollingUpdate,
    Verification,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """A GPU as it is made known to a validator: what its driver says."""

    uuid: str
    """32 hexadecimal digits."""
    name: str
    memory_bytes: int
    processors: int
    clock_khz: float
    max_threads_per_processor: int
    index: int
    """0-9 on its node."""
    short_ref: str
    facts: Mapping[str, Any]
    """More that was read: compute capability, ECC, SXM."""


class Validator(Protocol):
    """One validator."""

    @property
    def name(self) -> str:
        """Its hotkey, as an SS58 address: part of the key of whatever is kept of it."""
        ...

    async def supported_gpus(self) -> Sequence[GpuModelRule]:
        """Return the GPU models that it takes."""
        ...

    async def chutes(self) -> Listing[OfferedChute]:
        """Return its whole catalog, by id."""
        ...

    async def chute(self, chute_id: str, version: str) -> OfferedChute:
        """Return one version of one app."""
        ...

    async def images(self) -> Listing[OfferedImage]:
        """Return all images of its apps, by id."""
        ...

    async def gpus(self) -> Listing[KnownGpu]:
        """Return our GPUs as it knows them, by uuid."""
        ...

    async def instances(self) -> Listing[KnownInstance]:
        """Return our instances as it knows them, by id."""
        ...

    async def demand(self) -> Listing[Demand]:
        """Return the last hour's use, by app; an app without any is missing."""
        ...

    async def capacity(self) -> Listing[Capacity]:
        """Return how many instances it wants, by app."""
        ...

    async def bounties(self) -> Listing[Bounty]:
        """Return the bounties that wait, by app."""
        ...

    async def rolling_updates(self) -> Listing[RollingUpdate]:
        """Return the changes of version under way, by app."""
        ...

    async def register(
        self, gpus: Sequence[GpuFacts], *, server_id: str, server_name: str, host: str, port: int
    ) -> Registration:
        """Make GPUs of one node known; ``host:port`` is where they answer challenges.

        Raises ConflictError, naming them, where it knows some already, and InvalidInputError where it takes one for
        something else.
        """
        ...

    async def verification(self, registration: Registration) -> Verification:
        """Return how the verification of GPUs stands."""
        ...

    async def forget_gpu(self, uuid: str) -> None:
        """Have it forget a GPU; nothing happens where it knows none of it."""
        ...

    async def launch(self, chute_id: str, job_id: str | None = None) -> LaunchToken:
        """Return leave to start an instance of an app, or to run a job.

        Raises NoCapacityError where there is no room for one more, ForbiddenError where it is not for us.
        """
        ...

    async def end_instance(self, chute_id: str, instance_id: str) -> None:
        """Have it forget an instance; nothing happens where it knows none of it."""
        ...

    async def release_job(self, job_id: str) -> None:
        """Give a claimed job back, so that others may run it; nothing happens where it is not ours."""
        ...
