"""Is every device right? Known proofs at several levels, on each of them, one device after another."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpupool.devices.recovery.choosing import Maker
from gpupool.pos.costs import Kind
from gpupool.pos.quality import proof_pair
from gpupool.recompute.bench.device import Device, DeviceFailedError, running
from gpupool.recompute.bench.questions import KINDS, known_question
from gpupool.recompute.demo import known_proof
from gpupool.recompute.server.staffing import WorkerPlan, device_label

ANSWER_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one device."""

    device: str
    engine: str
    index: int | None
    """Of a card, as `-g` and `-c` count them."""
    well: bool
    why: str
    """What is wrong; empty where it is well."""
    seconds: float

    @property
    def label(self) -> str:
        """The device and what computes there, as a person finds it again."""
        return device_label(self.device, self.engine, self.index)


def driver_verdict(maker: Maker, why: str) -> Verdict:
    """Return what is to be said of a maker whose driver could not even list its cards."""
    return Verdict(f"{maker} driver", maker.lower(), None, False, why, 0.0)


async def try_devices(
    plans: Sequence[WorkerPlan], levels: Sequence[int], told: Callable[[Verdict], None]
) -> None:
    """Test every device in turn; ``told`` hears of each as soon as it is known."""
    for plan in plans:
        began = time.perf_counter()
        try:
            async with running(plan) as device:
                for level in levels:
                    for kind in KINDS:
                        await _try(device, kind, level)
            why = ""
        except DeviceFailedError as error:
            why = error.message
        seconds = time.perf_counter() - began
        told(Verdict(plan.name, plan.engine, plan.index, not why, why, seconds))


async def _try(device: Device, kind: Kind, level: int) -> None:
    proof = known_proof()
    expected = proof.xs if kind == "proof" else proof_pair(proof.xs, proof.challenge)
    try:
        done = await device.ask(kind, known_question(kind, level), ANSWER_SECONDS)
    except DeviceFailedError as error:
        raise DeviceFailedError(f"{kind} at C{level}: {error.message}", remedy=error.remedy) from error
    if done.xs != expected:
        raise DeviceFailedError(f"{kind} at C{level}: its answer is wrong.")
