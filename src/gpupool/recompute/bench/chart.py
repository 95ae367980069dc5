"""The farm that a machine can serve, drawn: bars for each level and filter, as an SVG that any browser shows.

Written by hand, since a few rectangles do not justify a plotting library. The scale is logarithmic: from C1 to C7 the
sizes differ by a factor of a hundred.
"""

from collections.abc import Mapping
from html import escape
from math import floor, log10
from typing import Final

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 80, 20, 60, 60
_FONT: Final = 'font-family="sans-serif" font-size="13"'
_COLOURS: Final = ("#9ecae1", "#4292c6", "#08519c")


def draw(title: str, sizes: Mapping[int, Mapping[int, float]]) -> str:
    """Return an SVG of ``sizes``: by level, then by plot filter, in TiB (> 0)."""
    values = [size for by_filter in sizes.values() for size in by_filter.values()]
    low, high = floor(log10(min(values))), floor(log10(max(values))) + 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, size=16),
    ]
    for power in range(low, high + 1):
        y = _height(10.0**power, low, high)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 8, y + 4, told(10.0**power), anchor="end"))
    step = (_WIDTH - _LEFT - _RIGHT) / len(sizes)
    for place, (level, by_filter) in enumerate(sizes.items()):
        bar = step * 0.8 / len(by_filter)
        for number, size in enumerate(by_filter.values()):
            x, y = _LEFT + place * step + step * 0.1 + number * bar, _height(size, low, high)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar * 0.9:.1f}" height="{_HEIGHT - _BOTTOM - y:.1f}"'
                f' fill="{_COLOURS[number % len(_COLOURS)]}"><title>C{level}: {told(size)}</title></rect>'
            )
        parts.append(
            _text(_LEFT + (place + 0.5) * step, _HEIGHT - _BOTTOM + 18, f"C{level}", anchor="middle")
        )
    filters = next(iter(sizes.values()))
    for number, plot_filter in enumerate(filters):
        x = _LEFT + number * 130
        parts.append(f'<rect x="{x}" y="{_HEIGHT - 26}" width="12" height="12" fill="{_COLOURS[number]}"/>')
        parts.append(_text(x + 18, _HEIGHT - 15, f"filter {plot_filter}"))
    return "\n".join([*parts, "</svg>", ""])


def told(tib: float) -> str:
    """Return a size as people say it."""
    if tib >= 1024:
        return f"{tib / 1024:.3g} PiB"
    return f"{tib:.3g} TiB"


def _height(size: float, low: int, high: int) -> float:
    share = (log10(size) - low) / (high - low)
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
