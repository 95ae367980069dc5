"""Which compression levels are tried: ``1-5`` or ``1,3,7``. Loads no numba, since the command line's help needs it."""

import re
from typing import Final

from gpupool.core.errors import InvalidInputError
from gpupool.pos.parameters import LEVELS

ALL: Final = f"{LEVELS[0]}-{LEVELS[-1]}"
_RANGE: Final = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", re.ASCII)


def parse_levels(text: str) -> list[int]:
    """Return the levels of ``1-5`` or ``1,3,7``, each once, in order; raises InvalidInputError."""
    found: set[int] = set()
    for part in text.split(","):
        wanted = _RANGE.fullmatch(part.strip())
        levels = range(int(wanted[1]), int(wanted[2] or wanted[1]) + 1) if wanted else range(0)
        if not levels or not set(levels) <= set(LEVELS):
            raise InvalidInputError(
                f"--levels {text[:40]!r} is no list of levels.",
                remedy=f"Write them as 1-5 or 1,3,7; there are {LEVELS[0]} to {LEVELS[-1]}.",
            )
        found.update(levels)
    return sorted(found)
