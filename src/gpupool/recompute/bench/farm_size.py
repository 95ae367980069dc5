"""How large a farm a machine can serve, by the formula that farmers know from Gigahorse.

Every 8 s of computing must suffice for the plots that pass the filter in one signage point:
largest farm [TiB] = plot size [GiB] / 1024 x filter x 8 x look-ups a second. A look-up is one quality, and in
``PROOF_SHARE`` of them a full proof as well. It counts what is stored, compressed, and leaves no reserve.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

FILTERS: Final = (512, 256, 128)
"""Plot filters of the past, of today, and from June 2027 on."""
PLOT_GIB: Final = {1: 87.5, 2: 86.0, 3: 84.5, 4: 82.9, 5: 81.3, 6: 79.6, 7: 78.0}
"""Published sizes of Bladebit's k=32 plots by level."""
PROOF_SHARE: Final = 0.04
"""Full proofs per quality, as Bladebit's authors measured on a farm."""
_SECONDS: Final = 8.0


@dataclass(frozen=True, slots=True)
class Rate:
    """What one device answers at one level, with all its threads."""

    qualities: float
    """A second."""
    proofs: float
    """A second, when it does nothing else."""


def lookups_a_second(rates: Iterable[Rate]) -> float:
    """Return the look-ups that devices of these rates answer together."""
    return sum(1.0 / (1.0 / rate.qualities + PROOF_SHARE / rate.proofs) for rate in rates)


def largest_farm_tib(level: int, plot_filter: int, lookups: float) -> float:
    """Return the TiB of plots of ``level`` (1 to 7) that ``lookups`` a second suffice for."""
    return PLOT_GIB[level] / 1024 * plot_filter * _SECONDS * lookups


@dataclass(frozen=True, slots=True)
class Farm:
    """What devices serve together at one level."""

    level: int
    devices: int
    """How many of them were measured at this level."""
    lookups_per_second: float
    largest_tib: dict[int, float]
    """By plot filter."""


def farms(measured: Iterable[tuple[int, Rate]]) -> list[Farm]:
    """Return the largest farm of each level that was measured, from (level, rate) of each device."""
    by_level: dict[int, list[Rate]] = {}
    for level, rate in measured:
        by_level.setdefault(level, []).append(rate)
    found = []
    for level, rates in sorted(by_level.items()):
        lookups = lookups_a_second(rates)
        sizes = {each: largest_farm_tib(level, each, lookups) for each in FILTERS}
        found.append(Farm(level, len(rates), lookups, sizes))
    return found
