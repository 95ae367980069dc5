"""What the solver front adds to a solution: farmers, workers that answer at once, and the front, all in one process.

A solution takes seconds, and a farm asks a few times a day, so what counts is that the front adds next to nothing, also
when a hundred farms ask in one moment. Goal: below 50 ms for a lone question, and over 100 a second, on one core.

    python benchmarks/solver_front.py [--questions 300] [--workers 8]
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import structlog  # noqa: E402

from solver_stage import Stage, WorkerDouble, made_identity, question, stage  # noqa: E402

LONE_MS, PER_SECOND = 50.0, 100.0


async def lone(standing: Stage, questions: int) -> list[float]:
    """Return the milliseconds of questions that come one after the other."""
    farmer, times = await standing.connected(), []
    for number in range(questions):
        began = time.perf_counter()
        await farmer.solve(question(number))
        times.append(1000 * (time.perf_counter() - began))
    return times


async def together(standing: Stage, questions: int) -> float:
    """Return how many questions a second are answered when four farmers ask for all of theirs at once."""
    farmers = [await standing.connected(made_identity(number)) for number in (2, 3, 4, 5)]
    each, began = min(60, questions), time.perf_counter()
    for place, farmer in enumerate(farmers):
        for number in range(each):
            await farmer.ask(question(10_000 * (place + 1) + number))
    await asyncio.gather(*(_answers(farmer.answer, each) for farmer in farmers))
    return each * len(farmers) / (time.perf_counter() - began)


async def _answers(answer: Callable[[], Awaitable[object]], count: int) -> None:
    for _ in range(count):
        await answer()


async def measure(questions: int, workers: int) -> tuple[list[float], float]:
    """Return both figures."""
    async with stage(*(WorkerDouble() for _ in range(workers))) as standing:
        return await lone(standing, questions), await together(standing, questions)


def main() -> int:
    """Measure, print, and say whether the goals are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--workers", type=int, default=8)
    given = parser.parse_args()
    structlog.configure(processors=[_silent])
    times, rate = asyncio.run(measure(given.questions, given.workers))
    middle, slow = statistics.median(times), statistics.quantiles(times, n=100)[98]
    print(f"a lone question: {middle:.1f} ms (99 in 100 below {slow:.1f} ms); at once: {rate:.0f} a second")
    return 0 if middle < LONE_MS and rate > PER_SECOND else 1


def _silent(*_: object) -> str:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
