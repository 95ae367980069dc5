"""The farm that a machine can serve, laid out as a chart: bars for each level and filter, labels, lines.

A few rectangles and words justify no plotting library; `pictures` makes files of them. The scale is logarithmic: from
C1 to C7 the sizes differ by a factor of a hundred.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import Final, Literal

WIDTH: Final = 760
HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 110, 20, 60, 60
_TEXT: Final = 13
_TITLE: Final = 16
_COLOURS: Final = ("#9ecae1", "#4292c6", "#08519c")
_RULE: Final = "#dddddd"


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; places and sizes are in pixels from the upper left corner."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    """As ``#rrggbb``."""
    told: str = ""
    """What it stands for, where a viewer can show that."""


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text; ``y`` is that of its base line."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    """Which part of the text is at ``x``."""
    size: int = _TEXT


Shape = Box | Words


def lay_out(title: str, sizes: Mapping[int, Mapping[int, float]]) -> list[Shape]:
    """Return what to draw, in this order, for ``sizes``: by level, then by plot filter, in TiB (> 0); one at least."""
    values = [size for by_filter in sizes.values() for size in by_filter.values()]
    scale = _Scale(floor(log10(min(values))), floor(log10(max(values))) + 1)
    filters = list(next(iter(sizes.values())))
    return [Words(_LEFT, 24, title, size=_TITLE), *scale.rules(), *_bars(sizes, scale), *_legend(filters)]


def told(tib: float) -> str:
    """Return a size as people say it."""
    number, unit = (tib / 1024, "PiB") if tib >= 1024 else (tib, "TiB")
    return f"{number:,.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Powers of ten (TiB) at the lower and upper end of the chart."""

    low: int
    high: int

    def y(self, size: float) -> float:
        share = (log10(size) - self.low) / (self.high - self.low)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    def rules(self) -> Iterator[Shape]:
        for power in range(self.low, self.high + 1):
            y = self.y(10.0**power)
            yield Box(_LEFT, y, WIDTH - _LEFT - _RIGHT, 1, _RULE)
            yield Words(_LEFT - 8, y + 4, f"{10.0**power:,.15g} TiB", "end")


def _bars(sizes: Mapping[int, Mapping[int, float]], scale: _Scale) -> Iterator[Shape]:
    step = (WIDTH - _LEFT - _RIGHT) / len(sizes)
    floor_y = HEIGHT - _BOTTOM
    for place, (level, by_filter) in enumerate(sizes.items()):
        bar = step * 0.8 / len(by_filter)
        for number, size in enumerate(by_filter.values()):
            x, y = _LEFT + (place + 0.1) * step + number * bar, scale.y(size)
            yield Box(x, y, bar * 0.9, floor_y - y, _colour(number), f"C{level}: {told(size)}")
        yield Words(_LEFT + (place + 0.5) * step, floor_y + 18, f"C{level}", "middle")


def _legend(filters: list[int]) -> Iterator[Shape]:
    for number, plot_filter in enumerate(filters):
        x = _LEFT + number * 130
        yield Box(x, HEIGHT - 26, 12, 12, _colour(number))
        yield Words(x + 18, HEIGHT - 15, f"filter {plot_filter}")


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
