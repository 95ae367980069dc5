"""What the dispatcher of a recompute server costs, in processor time of one core.

For each new request everything that waits is put, in order, where it will be finished first, before the request is
taken or refused. Goal: below 5 ms with a full default queue (64 waiting) before a CPU and eight cards.

    python benchmarks/dispatcher.py [--rounds 20]
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpupool.recompute.server.line import Line
from gpupool.recompute.server.rates import Rates, Work
from gpupool.recompute.server.schedule import Schedule

GOAL_MS = 5.0
WORKERS = {"cpu": [0.5] * 16, **{f"card {number}": [0.03, 0.04] for number in range(8)}}


@dataclass(eq=False)
class Job:
    """A question that waits."""

    client: str
    cost: float
    rank: tuple[float, int]
    work: Work


def filled(waiting: int, clients: int) -> Line[Job]:
    """Return a line with so many jobs."""
    line: Line[Job] = Line()
    for number in range(waiting):
        work = Work("proof", 1 + number % 7)
        line.add(Job(f"client {number % clients}", 0.1, (float(number % 17), number), work))
    return line


def forecast(line: Line[Job], rates: Rates) -> float:
    """Put everything where it will be finished first; return when the last one will be."""
    schedule: Schedule[str, Job] = Schedule(WORKERS, lambda name, job: rates.expected(job.work, name))
    slots = [schedule.put(job) for job in line.order()]
    return max(slot.finish for slot in slots if slot is not None)


def best(call: Callable[[], object], rounds: int) -> float:
    """Return the milliseconds of processor time of the best of ``rounds`` calls."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return 1000 * min(times)


def main() -> int:
    """Print a table; the exit status says whether the goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    rates = Rates()
    for name in WORKERS:
        for level in range(1, 8):
            rates.learn(Work("proof", level), 0.02 * 2**level / (1 if name == "cpu" else 20), name)
    print("waiting  clients  a decision")
    found = {}
    for waiting, clients in ((1, 1), (8, 4), (64, 1), (64, 16), (128, 100)):
        line = filled(waiting, clients)
        found[waiting, clients] = best(partial(forecast, line, rates), rounds)
        print(f"{waiting:7}  {clients:7}  {found[waiting, clients]:7.3f} ms")
    return int(found[64, 16] > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
