"""Spans of time as people type them: ``90s``, ``30m``, ``2h``, ``3d``, ``1w``."""

import re
from typing import Final

from gpupool.core.errors import InvalidInputError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN: Final = re.compile(r"(\d{1,6})([smhdw])")


def seconds_of(span: str) -> float:
    """Return the seconds of a span such as ``2h``; raise InvalidInputError where it is none."""
    found = _SPAN.fullmatch(span.strip().lower())
    if found is None:
        raise InvalidInputError(
            f"{span!r} is no span of time.",
            remedy="Give a number and s, m, h, d or w, such as 90s, 30m, 2h, 3d, 1w.",
        )
    return float(int(found[1]) * _UNITS[found[2]])
