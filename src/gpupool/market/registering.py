"""GPUs that miners make known: held against the catalog, numbered, and verified before they may earn.

Source: chutes.md sections 2.2 (``POST /nodes/``) and 4. Who verifies is behind a port: this module knows only that a
verification ends well or with a fault.
"""

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from gpupool.catalog.validation import MeasuredCard, failed_rules
from gpupool.market.records import Gpu, GpuState
from gpupool.market.refusing import RefusedError
from gpupool.market.state import Market

SEED_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClaim:
    """A GPU as a miner describes it."""

    uuid: str
    name: str
    memory: int
    """Bytes."""
    processors: int
    clock_khz: float
    device_index: int
    short_ref: str
    host: str
    port: int
    facts: Mapping[str, Any]
    """The whole description, as it came."""


class Verifier(Protocol):
    """Finds out whether a server's GPUs are what they are said to be."""

    async def verify(self, gpus: Sequence[Gpu]) -> str | None:
        """Return why the GPUs of one server are refused; None where they are genuine."""
        ...


async def register(
    market: Market, hotkey: str, server_id: str, server_name: str, claims: Sequence[GpuClaim]
) -> tuple[str, list[Gpu]]:
    """Take the GPUs of one server, all or none of them, and return the task that verifies them."""
    _check_server(claims)
    for claim in claims:
        _check_card(market, claim, len(claims))
    task_id = f"{hotkey}::{uuid.uuid4()}"
    seed = secrets.randbits(SEED_BITS)
    async with market.change() as change:
        known = [claim.uuid for claim in claims if claim.uuid in market.gpus]
        if known:
            raise RefusedError(409, f"These GPUs are known already: {', '.join(known)}")
        gpus = [
            Gpu(
                id=claim.uuid,
                hotkey=hotkey,
                server_id=server_id,
                server_name=server_name,
                short_ref=claim.short_ref,
                facts=dict(claim.facts),
                host=claim.host,
                port=claim.port,
                seed=seed,
                task_id=task_id,
                created_at=change.at,
            )
            for claim in claims
        ]
        for gpu in gpus:
            change.put(gpu)
    return task_id, gpus


async def settle_verification(market: Market, task_id: str, fault: str | None) -> None:
    """Note how a verification ended; a fault makes the next one begin with another seed."""
    async with market.change() as change:
        for gpu in gpus_of(market, task_id):
            if fault is None:
                change.put(replace(gpu, state=GpuState.VERIFIED, fault=None, verified_at=change.at))
                change.tell("gpu_verified", gpu.hotkey, gpu_id=gpu.id, miner_hotkey=gpu.hotkey)
            else:
                seed = secrets.randbits(SEED_BITS)
                change.put(replace(gpu, state=GpuState.FAILED, fault=fault, seed=seed))


def gpus_of(market: Market, task_id: str) -> list[Gpu]:
    """Return the GPUs of one verification."""
    return [gpu for gpu in market.gpus.values() if gpu.task_id == task_id]


def verification_of(market: Market, hotkey: str, task_id: str) -> dict[str, str]:
    """Return how a verification stands, as the wire has it."""
    if task_id.partition("::")[0] != hotkey:
        raise RefusedError(401, "This verification is another miner's.")
    gpus = gpus_of(market, task_id)
    if not gpus:
        return {"status": "error", "error": "There is no such verification."}
    if any(gpu.state is GpuState.FAILED for gpu in gpus):
        return {"status": "failed", "detail": next(gpu.fault or "" for gpu in gpus if gpu.fault)}
    pending = any(gpu.state is GpuState.PENDING for gpu in gpus)
    return {"status": "pending" if pending else "verified"}


def _check_server(claims: Sequence[GpuClaim]) -> None:
    if not claims:
        raise RefusedError(400, "A server is registered with its GPUs; none was given.")
    if len({claim.uuid for claim in claims}) != len(claims):
        raise RefusedError(400, "The same GPU is named twice.")
    if len({(claim.host, claim.port) for claim in claims}) != 1:
        raise RefusedError(400, "All GPUs of a server are verified at one host and port.")
    if len({claim.short_ref for claim in claims}) != 1:
        raise RefusedError(400, "All GPUs of a server must be of one model.")


def _check_card(market: Market, claim: GpuClaim, count: int) -> None:
    card = MeasuredCard(
        name=claim.name,
        index=claim.device_index,
        memory_bytes=claim.memory,
        processors=claim.processors,
        clock_khz=int(claim.clock_khz),
        claimed_ref=claim.short_ref,
        gpus_on_server=count,
        port=claim.port,
    )
    failed = failed_rules(market.catalog.validate(card))
    if failed:
        raise RefusedError(400, f"{claim.uuid}: {'; '.join(result.text for result in failed)}")
