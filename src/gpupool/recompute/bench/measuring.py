"""How fast is every device? Latency of one question at a time, then throughput with as many at once as it takes."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpupool.pos.costs import Kind
from gpupool.recompute.bench.device import Device, DeviceFailedError, DeviceGivenUpError, running
from gpupool.recompute.bench.farm_size import Rate
from gpupool.recompute.bench.questions import known_question
from gpupool.recompute.server.staffing import WorkerPlan

ANSWER_SECONDS: Final = 300.0
LEAST: Final = 3
"""Answers that a latency is told from, whatever they take."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One kind of question at one level; times in ms."""

    p50_ms: float
    p99_ms: float
    per_second: float
    """With as many at once as the device has threads."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One device at one level."""

    device: str
    engine: str
    index: int | None
    """Of a card, as `-g` and `-c` count them."""
    threads: int
    level: int
    quality: Speed
    proof: Speed
    peak_mib: int | None
    """Most memory of the worker process, compiled kernels and libraries included; None where unknown."""

    @property
    def rate(self) -> Rate:
        """What the farm's size is reckoned from."""
        return Rate(self.quality.per_second, self.proof.per_second)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a device could not do."""

    device: str
    engine: str
    index: int | None
    levels: tuple[int, ...]
    """Levels that have no figures because of it; all of them where it did not even start."""
    why: str
    remedy: str


async def measure(
    plan: WorkerPlan, levels: Sequence[int], seconds: float
) -> AsyncIterator[Measured | Failure]:
    """Yield what one device does at each of ``levels`` (in this order), giving each figure ``seconds``.

    A level that fails costs no other one: the device is started anew for the next. One that does not answer in time
    or does not start is given up, since each further try may take as long.
    """
    left = list(levels)
    while left:
        try:
            async with running(plan) as device:
                while left:
                    yield await _measured(device, left[0], seconds)
                    del left[0]
        except DeviceGivenUpError as error:
            yield _failure(plan, left, error)
            return
        except DeviceFailedError as error:
            yield _failure(plan, left[:1], error)
            del left[0]


def _failure(plan: WorkerPlan, levels: Sequence[int], error: DeviceFailedError) -> Failure:
    return Failure(plan.name, plan.engine, plan.index, tuple(levels), error.message, error.remedy)


async def _measured(device: Device, level: int, seconds: float) -> Measured:
    device.forget_peak()
    quality = await _speed(device, "quality", level, seconds)
    proof = await _speed(device, "proof", level, seconds)
    peak, plan = device.peak_bytes(), device.plan
    mib = None if peak is None else peak >> 20
    return Measured(plan.name, plan.engine, plan.index, plan.threads, level, quality, proof, mib)


async def _speed(device: Device, kind: Kind, level: int, seconds: float) -> Speed:
    question = known_question(kind, level)
    # The first one allocates, which the others do not.
    await device.ask(kind, question, ANSWER_SECONDS)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < LEAST or time.perf_counter() - began < seconds:
        times.append((await device.ask(kind, question, ANSWER_SECONDS)).seconds)
    times.sort()
    if device.plan.threads == 1:
        per_second = 1.0 / (sum(times) / len(times))
    else:
        per_second = await _throughput(device, kind, level, seconds)
    return Speed(_quantile(times, 0.5) * 1000, _quantile(times, 0.99) * 1000, per_second)


async def _throughput(device: Device, kind: Kind, level: int, seconds: float) -> float:
    question = known_question(kind, level)
    began = time.perf_counter()
    answered = 0

    async def ask_on() -> None:
        nonlocal answered
        while True:
            await device.ask(kind, question, ANSWER_SECONDS)
            answered += 1
            if time.perf_counter() - began >= seconds:
                return

    await asyncio.gather(*(ask_on() for _ in range(device.plan.threads)))
    return answered / (time.perf_counter() - began)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
