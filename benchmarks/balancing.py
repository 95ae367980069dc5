"""What a decision of the balancing library costs, in processor time of one core.

A pool is warmed up, then each call is timed over rounds; the best round counts, since a busy machine only adds. Goal:
``pick`` below 5 µs at 32 nodes. A cycle is all that a request needs: pick, started, silence limit, hedging, finished.

    python benchmarks/balancing.py [--rounds 20] [--calls 2000]
"""

import argparse
import sys
import time
from collections.abc import Callable

from gpupool.balancing import NodeLimits, Outcome, Pool

PICK_GOAL_US = 5.0


class Bench:
    """A pool of ``nodes`` equal nodes and a clock that moves 0.1 ms a call."""

    def __init__(self, nodes: int) -> None:
        self.pool = Pool()
        self.pool.set_nodes({f"node-{index}": NodeLimits(concurrency=12) for index in range(nodes)})
        self.now = 0.0

    def pick(self) -> None:
        """Ask once."""
        self.now += 1e-4
        self.pool.pick(self.now)

    def cycle(self) -> None:
        """Do all that one request needs."""
        self.now += 1e-4
        pool, now = self.pool, self.now
        node = pool.pick(now)
        assert node is not None
        ticket = pool.started(node, now)
        pool.silence_limit(node, "", now)
        pool.hedge_after(now)
        pool.finished(ticket, now + 0.01, Outcome.OK)


def best_us(call: Callable[[], None], rounds: int, calls: int) -> float:
    """Return microseconds of processor time per call in the best round."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        for _ in range(calls):
            call()
        best = min(best, (time.process_time() - begin) / calls)
    return best * 1e6


def main() -> int:
    """Print a line per size; fail when the goal is missed."""
    parser = argparse.ArgumentParser(description="What a decision of the balancing library costs.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    missed = False
    for nodes in (1, 8, 32):
        bench = Bench(nodes)
        cycle = best_us(bench.cycle, options.rounds, options.calls)
        pick = best_us(bench.pick, options.rounds, options.calls)
        print(f"{nodes:3} nodes: pick {pick:5.2f} us, whole cycle of a request {cycle:5.2f} us")
        missed = missed or pick > PICK_GOAL_US
    print(f"pick below {PICK_GOAL_US} us: {'no' if missed else 'yes'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
