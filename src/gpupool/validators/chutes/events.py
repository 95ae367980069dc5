"""What a validator broadcasts, as the pool understands it.

Source: chutes.md section 2.5. The words differ between senders (``exclude`` and ``excluded``; a job that is offered again
has no ``disk_gb``), and new reasons come with new versions: what is not understood is passed over, for the lists heal
every gap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AliasChoices, Field, ValidationError

from gpupool.fleet.offers import OfferedJob
from gpupool.validators.chutes.messages import Amount, Count, Id, Item, ShortRef

MULTIPLIER: Final = 1.0
"""Of a job whose offer says nothing of it."""


class Reason(StrEnum):
    """Why a validator speaks up."""

    CHUTE_CREATED = "chute_created"
    CHUTE_UPDATED = "chute_updated"
    CHUTE_DELETED = "chute_deleted"
    ROLLING_UPDATE = "rolling_update"
    BOUNTY_CHANGE = "bounty_change"
    IMAGE_CREATED = "image_created"
    IMAGE_UPDATED = "image_updated"
    IMAGE_DELETED = "image_deleted"
    INSTANCE_CREATED = "instance_created"
    INSTANCE_VERIFIED = "instance_verified"
    INSTANCE_ACTIVATED = "instance_activated"
    INSTANCE_DELETED = "instance_deleted"
    GPU_VERIFIED = "gpu_verified"
    JOB_CREATED = "job_created"
    JOB_DELETED = "job_deleted"


class ChuteNews(Item):
    """A chute came, changed or went."""

    chute_id: Id
    version: Id
    job_only: bool = False


class RollingUpdateNews(Item):
    """One of our instances is to be replaced."""

    chute_id: Id
    instance_id: Id
    old_version: Id
    new_version: Id


class BountyNews(Item):
    """A bounty has come or grown."""

    chute_id: Id
    bounty: Amount


class ImageNews(Item):
    """An image came, changed or went."""

    image_id: Id
    image: str | None = None
    chute_ids: list[Id] = []


class InstanceNews(Item):
    """Something happened to one of our instances."""

    instance_id: Id
    chute_id: Id | None = None
    config_id: Id | None = None


class GpuNews(Item):
    """One of our GPUs was verified."""

    gpu_id: Id


class JobNews(Item):
    """A job is offered."""

    job_id: Id
    chute_id: Id
    method: Annotated[str, Field(max_length=200)] = ""
    gpu_count: Annotated[int, Field(ge=1, le=8)] = 1
    compute_multiplier: Amount = MULTIPLIER
    excluded: Annotated[
        list[ShortRef] | None, Field(validation_alias=AliasChoices("exclude", "excluded"))
    ] = None
    disk_gb: Count | None = None

    def offer(self) -> OfferedJob:
        """Return it as the pool knows it."""
        return OfferedJob(
            id=self.job_id,
            chute_id=self.chute_id,
            method=self.method,
            gpu_count=self.gpu_count,
            multiplier=self.compute_multiplier,
            excluded=frozenset(self.excluded or ()),
            disk_gb=self.disk_gb,
        )


class JobEnd(Item):
    """A job of ours is over."""

    job_id: Id
    instance_id: Id | None = None


_CONTENTS: Final[Mapping[Reason, type[Item]]] = {
    Reason.CHUTE_CREATED: ChuteNews,
    Reason.CHUTE_UPDATED: ChuteNews,
    Reason.CHUTE_DELETED: ChuteNews,
    Reason.ROLLING_UPDATE: RollingUpdateNews,
    Reason.BOUNTY_CHANGE: BountyNews,
    Reason.IMAGE_CREATED: ImageNews,
    Reason.IMAGE_UPDATED: ImageNews,
    Reason.IMAGE_DELETED: ImageNews,
    Reason.INSTANCE_CREATED: InstanceNews,
    Reason.INSTANCE_VERIFIED: InstanceNews,
    Reason.INSTANCE_ACTIVATED: InstanceNews,
    Reason.INSTANCE_DELETED: InstanceNews,
    Reason.GPU_VERIFIED: GpuNews,
    Reason.JOB_CREATED: JobNews,
    Reason.JOB_DELETED: JobEnd,
}


@dataclass(frozen=True, slots=True)
class ValidatorNews:
    """One thing that a validator has told."""

    reason: Reason
    content: Any
    """The message that belongs to the reason."""


def understood(message: object) -> ValidatorNews | str:
    """Return what a broadcast says, or in one line why it says nothing to us."""
    if not isinstance(message, dict):
        return "it is no object"
    try:
        reason = Reason(str(message.get("reason")))
    except ValueError:
        return f"its reason {str(message.get('reason'))[:60]!r} is not known"
    try:
        return ValidatorNews(reason, _CONTENTS[reason].model_validate(message.get("data")))
    except ValidationError as error:
        first = error.errors()[0]
        return f"{reason.value}: {'.'.join(map(str, first['loc'])) or 'data'}: {first['msg']}"[:200]
