"""The market's catalog: images and chutes come, change and go.

A chute keeps its id as long as its owner and name stay; its version follows from what runs: image and code. A changed
version is a rolling update: instances of the old one go on until the miners have replaced them.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpupool.catalog import Catalog
from gpupool.catalog.models import GpuModel
from gpupool.market.records import TARGET_LIMIT, Chute, Image, JobKind
from gpupool.market.refusing import RefusedError
from gpupool.market.state import Change, Market

MOST_CODE: Final = 150_000
"""Characters."""
SDK_VERSION: Final = "0.3.31"
"""What chutes that say nothing else were made with: the launch by token begins with 0.3.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChuteWish:
    """A chute as its owner wants it."""

    user: str
    name: str
    image: str
    """An image's reference, ``user/name:tag``."""
    filename: str
    ref_str: str
    code: str
    tagline: str = ""
    readme: str = ""
    gpu_count: int = 1
    min_vram_gb: int = 0
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    concurrency: int = 1
    cords: tuple[dict[str, Any], ...] = ()
    jobs: tuple[JobKind, ...] = ()
    preemptible: bool = True
    public: bool = True
    target: int = 1


async def publish_image(market: Market, user: str, name: str, tag: str) -> Image:
    """Make an image known, or build it anew: its patch level changes then."""
    image_id = _stable_id(user, "image", name, tag)
    async with market.change() as change:
        old = market.images.get(image_id)
        image = Image(
            id=image_id,
            user=user,
            name=name,
            tag=tag,
            patch_version="initial" if old is None else uuid.uuid4().hex[:8],
            chutes_version=SDK_VERSION,
            created_at=change.at,
        )
        change.put(image)
        if old is None:
            change.tell("image_created", image_id=image_id)
        else:
            users = [chute.id for chute in market.chutes.values() if chute.image_id == image_id]
            change.tell(
                "image_updated",
                image_id=image_id,
                short_tag=f"{user}/{name}:{tag}",
                patch_version=image.patch_version,
                chutes_version=image.chutes_version,
                chute_ids=users,
                image=image.reference,
            )
    return image


async def remove_image(market: Market, image_id: str) -> None:
    """Let go of an image that no chute names."""
    async with market.change() as change:
        image = market.images.get(image_id)
        if image is None:
            raise RefusedError(404, "There is no such image.")
        users = [chute.name for chute in market.chutes.values() if chute.image_id == image_id]
        if users:
            raise RefusedError(409, f"The image is used by {', '.join(sorted(users)[:5])}.")
        change.drop(image)
        change.tell("image_deleted", image_id=image_id)


async def publish(market: Market, wish: ChuteWish) -> Chute:
    """Publish a chute, or change the one of that owner and name."""
    _check(wish)
    image = next((image for image in market.images.values() if image.reference == wish.image), None)
    if image is None:
        raise RefusedError(404, f"There is no image {wish.image!r:.200}; publish it first.")
    models = able_models(market.catalog, wish)
    if not models:
        raise RefusedError(400, "No GPU model of the catalog fits the node selector.")
    chute_id = _stable_id(wish.user, "chute", wish.name)
    multiplier = market.catalog.chute_multiplier(wish.gpu_count, [model.short_ref for model in models])
    version = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{image.reference}:{wish.ref_str}:{wish.code}"))
    async with market.change() as change:
        old = market.chutes.get(chute_id)
        chute = _chute(wish, chute_id, version, image.id, models, multiplier, old, change.at)
        if old is not None and replace(old, updated_at=chute.updated_at) == chute:
            return old
        change.put(chute)
        reason = "chute_created" if old is None else "chute_updated"
        change.tell(reason, chute_id=chute_id, version=version, job_only=chute.job_only)
        if old is not None and old.version != version:
            _roll(market, change, old, chute)
    return chute


async def withdraw(market: Market, chute_id: str) -> None:
    """Take a chute out of the catalog; its instances are no longer wanted."""
    async with market.change() as change:
        chute = market.chutes.get(chute_id)
        if chute is None:
            raise RefusedError(404, "There is no such chute.")
        change.drop(chute)
        for instance in market.instances_of(chute_id):
            change.drop(instance)
        change.tell("chute_deleted", chute_id=chute_id, version=chute.version)


async def set_target(market: Market, chute_id: str, target: int) -> Chute:
    """Want another number of instances of a chute."""
    if not 0 <= target <= TARGET_LIMIT:
        raise RefusedError(400, f"A target lies between 0 and {TARGET_LIMIT}.")
    async with market.change() as change:
        chute = market.chutes.get(chute_id)
        if chute is None:
            raise RefusedError(404, "There is no such chute.")
        changed = replace(chute, target=target, bounty_since=chute.bounty_since if target else None)
        change.put(changed)
    return changed


def able_models(catalog: Catalog, wish: ChuteWish) -> list[GpuModel]:
    """Return the catalog's models that fit a wish, the cheapest first."""
    models = [
        model
        for model in catalog
        if model.memory_gb >= wish.min_vram_gb
        and (not wish.include or model.short_ref in wish.include)
        and model.short_ref not in wish.exclude
    ]
    return sorted(models, key=lambda model: (model.hourly_usd, model.short_ref))


def _check(wish: ChuteWish) -> None:
    if not 1 <= wish.gpu_count <= 8:
        raise RefusedError(400, "A chute runs on 1 to 8 GPUs.")
    if len(wish.code) > MOST_CODE:
        raise RefusedError(400, f"The code has more than {MOST_CODE} characters.")
    if not 0 <= wish.target <= TARGET_LIMIT:
        raise RefusedError(400, f"A target lies between 0 and {TARGET_LIMIT}.")
    if not wish.cords and not wish.jobs:
        raise RefusedError(400, "A chute serves something or runs jobs; this one does neither.")


def _chute(
    wish: ChuteWish,
    chute_id: str,
    version: str,
    image_id: str,
    models: Sequence[GpuModel],
    multiplier: float,
    old: Chute | None,
    now: float,
) -> Chute:
    return Chute(
        id=chute_id,
        user=wish.user,
        name=wish.name,
        version=version,
        image_id=image_id,
        filename=wish.filename,
        ref_str=wish.ref_str,
        code=wish.code,
        tagline=wish.tagline,
        readme=wish.readme,
        gpu_count=wish.gpu_count,
        min_vram_gb=wish.min_vram_gb,
        supported_gpus=tuple(model.short_ref for model in models),
        concurrency=wish.concurrency,
        cords=wish.cords,
        jobs=wish.jobs,
        preemptible=wish.preemptible,
        public=wish.public,
        target=wish.target,
        multiplier=multiplier,
        created_at=now if old is None else old.created_at,
        updated_at=now,
        bounty_since=None if old is None else old.bounty_since,
    )


def _roll(market: Market, change: Change, old: Chute, new: Chute) -> None:
    """Tell each miner which of its instances are to be replaced."""
    for instance in market.instances_of(old.id):
        change.tell(
            "rolling_update",
            instance.hotkey,
            chute_id=old.id,
            instance_id=instance.id,
            miner_hotkey=instance.hotkey,
            old_version=old.version,
            new_version=new.version,
            reason="chute updated",
        )


def _stable_id(*parts: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "::".join(parts)))
