"""Records as the wire lists them, and the text that carries a list.

Source: chutes.md section 2.3. Whoever reads a list cannot tell whether it is whole, so one is never ended early: what is
listed is fixed before its first byte.
"""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from gpupool.market.records import Chute, Gpu, GpuState, Image, Instance, Job
from gpupool.market.state import Market

_IN_A_PIECE = 64 * 1024


def moment(seconds: float | None) -> str | None:
    """Return a time as text (ISO 8601, UTC)."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


async def lines_of(items: Sequence[dict[str, Any]], *, explicit_null: bool) -> AsyncIterator[bytes]:
    """Yield a list as lines, several in a piece."""
    if not items and explicit_null:
        yield b"data: NO_ITEMS\n"
    piece = bytearray()
    for item in items:
        piece += b"data: " + json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        if len(piece) >= _IN_A_PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def chute_items(market: Market) -> Iterable[dict[str, Any]]:
    """Return the catalog."""
    return [chute_item(market, chute) for chute in market.chutes.values()]


def chute_item(market: Market, chute: Chute) -> dict[str, Any]:
    """Return one chute."""
    image = market.images.get(chute.image_id)
    selector = {
        "gpu_count": chute.gpu_count,
        "min_vram_gb_per_gpu": chute.min_vram_gb,
        "include": None,
        "exclude": None,
        "compute_multiplier": chute.multiplier,
        "supported_gpus": list(chute.supported_gpus),
    }
    jobs = [
        {
            "name": kind.name,
            "timeout": kind.timeout_seconds,
            "ports": [{"proto": proto, "port": port} for proto, port in kind.ports],
        }
        for kind in chute.jobs
    ]
    return {
        "chute_id": chute.id,
        "user_id": chute.user,
        "name": chute.name,
        "slug": f"{chute.user}-{chute.name}",
        "version": chute.version,
        "revision": None,
        "image": image.reference if image else None,
        "image_id": chute.image_id,
        "chutes_version": image.chutes_version if image else None,
        "filename": chute.filename,
        "ref_str": chute.ref_str,
        "code": chute.code,
        "tagline": chute.tagline,
        "readme": chute.readme,
        "node_selector": selector,
        "supported_gpus": list(chute.supported_gpus),
        "concurrency": chute.concurrency,
        "cords": list(chute.cords),
        "jobs": jobs,
        "max_instances": None,
        "preemptible": chute.preemptible,
        "public": chute.public,
        "standard_template": None,
        "created_at": moment(chute.created_at),
        "updated_at": moment(chute.updated_at),
    }


def image_item(image: Image) -> dict[str, Any]:
    """Return one image."""
    return {
        "image_id": image.id,
        "user_id": image.user,
        "username": image.user,
        "name": image.name,
        "tag": image.tag,
        "patch_version": image.patch_version,
        "chutes_version": image.chutes_version,
        "public": True,
        "status": "built and pushed",
        "created_at": moment(image.created_at),
    }


def gpu_item(gpu: Gpu) -> dict[str, Any]:
    """Return one GPU, as it was registered and how it stands."""
    return {
        **gpu.facts,
        "uuid": gpu.id,
        "gpu_identifier": gpu.short_ref,
        "verification_host": gpu.host,
        "verification_port": gpu.port,
        "seed": gpu.seed,
        "miner_hotkey": gpu.hotkey,
        "server_id": gpu.server_id,
        "server_name": gpu.server_name,
        "created_at": moment(gpu.created_at),
        "verified_at": moment(gpu.verified_at) if gpu.state is GpuState.VERIFIED else None,
        "verification_error": gpu.fault,
    }


def instance_item(instance: Instance) -> dict[str, Any]:
    """Return one instance. Its key stays with it and the market."""
    return {
        "instance_id": instance.id,
        "chute_id": instance.chute_id,
        "version": instance.version,
        "config_id": instance.config_id,
        "job_id": instance.job_id,
        "host": instance.host,
        "port": instance.port,
        "port_mappings": list(instance.port_mappings),
        "miner_hotkey": instance.hotkey,
        "active": instance.active,
        "verified": True,
        "compute_multiplier": instance.multiplier,
        "created_at": moment(instance.created_at),
        "last_verified_at": moment(instance.verified_at),
        "activated_at": moment(instance.activated_at),
        "verification_error": None,
        "consecutive_failures": 0,
    }


def job_item(job: Job) -> dict[str, Any]:
    """Return one job."""
    return {
        "job_id": job.id,
        "chute_id": job.chute_id,
        "version": job.version,
        "method": job.method,
        "status": job.state.value,
        "miner_hotkey": job.hotkey,
        "instance_id": job.instance_id,
        "disk_gb": job.disk_gb,
        "exclude": list(job.excluded),
        "created_at": moment(job.created_at),
        "finished_at": moment(job.finished_at),
    }


def inventory(market: Market, hotkey: str) -> list[dict[str, Any]]:
    """Return what runs on each of a miner's GPUs."""
    on = {gpu_id: instance for instance in market.instances.values() for gpu_id in instance.gpu_ids}
    items = []
    for gpu in market.gpus.values():
        if gpu.hotkey != hotkey:
            continue
        instance = on.get(gpu.id)
        chute = market.chutes.get(instance.chute_id) if instance else None
        items.append(
            {
                "gpu_id": gpu.id,
                "last_verified_at": moment(gpu.verified_at),
                "verification_error": gpu.fault,
                "active": instance.active if instance else None,
                "chute_id": instance.chute_id if instance else None,
                "chute_name": chute.name if chute else None,
            }
        )
    return items
