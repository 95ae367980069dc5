"""A program that looks up plots as Chia's stock harvester does: chiapos's own prover, a pool of contexts, many threads.

It knows nothing of ours; what answers it is a matter of its environment. Of every plot given it asks the quality of its
challenge and then the full proof, again and again where ``--rounds`` says so or until its input ends, and writes one line
of JSON a look-up.
"""

import argparse
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import count

WAIT_S = 20
"""`decompressor_timeout` as it comes."""
chiapos = import_module("chiapos")  # it has no types
writing = threading.Lock()


def tell(**fields: object) -> None:
    with writing:
        print(json.dumps(fields), flush=True)


def look_up(number: int, prover: object, challenge: bytes) -> None:
    began = time.perf_counter()
    qualities = prover.get_qualities_for_challenge(challenge)  # type: ignore[attr-defined]
    found, middle = [bytes(quality).hex() for quality in qualities], time.perf_counter()
    tell(plot=number, kind="quality", found=found, ms=1000 * (middle - began))
    try:
        proof = prover.get_full_proof(challenge, 0)  # type: ignore[attr-defined]
        found = [bytes(proof).hex()]
    except RuntimeError as error:
        found = [str(error)]
    tell(plot=number, kind="proof", found=found, ms=1000 * (time.perf_counter() - middle))


def harvest(plots: list[str], threads: int, rounds: int | None) -> None:
    named = [plot.split("=", 1) for plot in plots]
    opened = [(chiapos.DiskProver(path), bytes.fromhex(challenge)) for challenge, path in named]
    ended = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        ended.set()

    if rounds is None:
        threading.Thread(target=await_end, daemon=True).start()
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds) if rounds is not None else count():
            if ended.is_set():
                break
            list(pool.map(lambda one: look_up(one[0], *one[1]), enumerate(opened)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("plots", nargs="+", metavar="CHALLENGE=PATH")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--contexts", type=int, default=16, help="`parallel_decompressor_count`, 330 MB each")
    given = parser.parse_args()
    chiapos.decompressor_context_queue.init(given.contexts, 1, True, 7, False, 0, False, WAIT_S)
    harvest(given.plots, given.threads, given.rounds)
