"""GPUs taken at their word: the check for a market whose machines all belong to its owner.

The catalog's rules still hold (`registering`), and an instance must still show that it got the key meant for its GPU; but
that key is wrapped with public values, so nothing here proves that there is a GPU at all. Where strangers are paid, a
proof takes this module's place.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from gpupool.market.instances import Challenge
from gpupool.market.records import Gpu, Launch
from gpupool.market.sealing import sealed_whole

ANSWER_SECONDS: Final = 120.0
ITERATIONS: Final = 1


class DeclaredGpus:
    """Verifies nothing beyond the catalog's rules."""

    async def verify(self, gpus: Sequence[Gpu]) -> str | None:
        """Return why the GPUs of one server are refused: never."""
        return None

    def seconds(self, gpus: list[Gpu]) -> float:
        """Return how long an answer may take."""
        return ANSWER_SECONDS

    async def challenge(self, launch: Launch, gpus: list[Gpu], symmetric_key: str) -> Challenge:
        """Return the key, wrapped for the first GPU."""
        gpu = gpus[0]
        return Challenge(
            seed=launch.seed,
            iterations=ITERATIONS,
            uuid=gpu.id,
            ciphertext=sealed_whole(wrapping_key(launch.seed, gpu.id), symmetric_key),
        )

    async def check(self, launch: Launch, gpus: list[Gpu], answer: dict[str, Any]) -> str | None:
        """Return why an answer is refused: where it leaves out one of the GPUs."""
        shown = answer.get("proof")
        missing = [gpu.id for gpu in gpus if not isinstance(shown, dict) or gpu.id not in shown]
        return f"it says nothing of {', '.join(missing)}" if missing else None


def wrapping_key(seed: int, gpu_id: str) -> bytes:
    """Return the key, 16 bytes, that every reader of the protocol can work out."""
    return hashlib.sha256(f"{seed}:{gpu_id}".encode()).digest()[:16]
