"""What a solver is asked: the partial proof of a v2 plot, to be completed.

A farmer sends it once a plot has won; 28 s later the answer is worthless. Only k=28 exists on mainnet, smaller plots in
tests. Work roughly doubles with each two steps of strength.
"""

from dataclasses import dataclass
from typing import Final

from gpupool.core.errors import InvalidInputError, NotFoundError, UnsupportedError

PARTIAL_PROOF_BYTES: Final = 128
"""16 numbers of 64 bits."""
MAINNET_K: Final = 28
K_RANGE: Final = range(18, 33, 2)
STRENGTH_RANGE: Final = range(2, 18)
_BASE_SECONDS: Final = {2: 3.7, 3: 3.9, 4: 4.4, 5: 5.4, 6: 8.1, 7: 13.5, 8: 22.4}
"""Processor time of one k=28 solution on a server core, measured."""
_GROWTH: Final = 0.74
_LEAST_SECONDS: Final = 0.04
"""Fitted to k = 18 to 28 at strength 2: 0.05, 0.09, 0.20, 0.48 and (28) 3.7 s."""


class UnsolvedError(NotFoundError):
    """The partial proof could not be completed."""

    code = "unsolved"
    default_remedy = (
        "Check plot id, k and strength, and that farmer and solver have the same release of chia_rs: releases do not"
        " understand each other's plots."
    )


@dataclass(frozen=True, slots=True)
class SolveQuestion:
    """A partial proof and the plot it is from."""

    partial_proof: bytes
    """128 bytes, as chia_rs writes it."""
    plot_id: bytes
    """32 bytes."""
    k: int
    strength: int

    def __post_init__(self) -> None:
        """Raise InvalidInputError or UnsupportedError for what no solver can answer."""
        if len(self.partial_proof) != PARTIAL_PROOF_BYTES:
            raise InvalidInputError(
                f"A partial proof has {PARTIAL_PROOF_BYTES} bytes, {len(self.partial_proof)} were given."
            )
        if len(self.plot_id) != 32:
            raise InvalidInputError(f"A plot id has 32 bytes, {len(self.plot_id)} were given.")
        if self.k not in K_RANGE:
            raise UnsupportedError(
                f"v2 plots of k={self.k} cannot be solved.",
                remedy=f"k is an even number from {K_RANGE.start} to {K_RANGE[-1]}; mainnet has 28.",
            )
        if self.strength not in STRENGTH_RANGE:
            raise UnsupportedError(
                f"Strength {self.strength} cannot be solved.",
                remedy=f"Strength is from {STRENGTH_RANGE.start} to {STRENGTH_RANGE[-1]}.",
            )

    @property
    def cost_seconds(self) -> float:
        """Expected processor time in seconds, to compare questions with."""
        return core_seconds(self.k, self.strength)

    @property
    def proof_bytes(self) -> int:
        """How long the whole proof is: 128 numbers of k bits."""
        return 16 * self.k


def core_seconds(k: int, strength: int) -> float:
    """Return the expected seconds of one core; they grow 1.67-fold with each step of k, twofold per strength above 8."""
    top = max(_BASE_SECONDS)
    base = _BASE_SECONDS[min(strength, top)] * 2.0 ** max(0, strength - top)
    return float(_LEAST_SECONDS + base * 2.0 ** (_GROWTH * (k - MAINNET_K)))
