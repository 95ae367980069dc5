"""The process that solves: one question at a time, with every core it is given, holding Python's lock all the while.

chia_rs cannot be interrupted and lets no other thread of its process run, so nothing else lives here. Questions and
answers are lines of JSON. The process ends at the end of its input, or by the kernel's hand when its parent dies.
"""

import inspect
import json
import os
import signal
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

from gpupool.core.lifeline import die_with_parent

PACKAGE: Final = "chia_rs"
NICENESS: Final = 2
"""What others of this machine do in milliseconds goes before what takes seconds: two thirds of their weight."""


def main() -> None:
    """Serve; arguments: the parent's process id, and how many cores to use (0: all)."""
    parent, cores = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_to(cores)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    library = import_module(PACKAGE)
    _say({"ready": version(PACKAGE)})
    for line in sys.stdin:
        asked = json.loads(line)
        _say({"number": asked["number"], **_answer(library, asked)})


def _answer(library: Any, asked: dict[str, Any]) -> dict[str, str]:
    """Return the proof, new or given, once its quality is that of the partial one, or what was wrong."""
    strength, k, plot_id = asked["strength"], asked["k"], bytes.fromhex(asked["plot_id"])
    try:
        partial = library.PartialProof.from_bytes(bytes.fromhex(asked["partial_proof"]))
        sized = import_module(f"{PACKAGE}.sized_bytes").bytes32(plot_id)
        if "proof" in asked:
            proof = bytes.fromhex(asked["proof"])
        else:
            # Releases before 0.53 also want to know whether this is a test network.
            more = (False,) if "testnet" in inspect.signature(library.solve_proof).parameters else ()
            proof = bytes(library.solve_proof(partial, sized, strength, k, *more) or b"")
        if not proof:
            return {"fault": "no proof"}
        quality = library.quality_string_from_proof(sized, k, strength, proof)
        if quality is None or quality != partial.get_string(strength):
            return {"fault": "the proof has another quality than the partial proof"}
    except (ValueError, TypeError, OverflowError) as error:
        return {"fault": str(error)[:300] or type(error).__name__}
    return {"proof": proof.hex()}


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _keep_to(cores: int) -> None:
    """Let the library, which starts a thread for every core it sees, see only so many."""
    if cores > 0 and sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


if __name__ == "__main__":
    main()
