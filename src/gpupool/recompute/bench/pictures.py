"""A chart as a file: SVG, written by hand since any browser shows it, or PNG, for chats and forums that take only that.

Painting a PNG needs fonts, so that is left to Pillow, which is an extra of its own. Whatever can be wrong with a file is
said before anything is measured, and an older chart is replaced in one step, so that a full disk leaves it whole.
"""

import os
import secrets
from collections.abc import Callable, Sequence
from html import escape
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.recompute.bench.chart import HEIGHT, WIDTH, Box, Shape

_FONT: Final = 'font-family="sans-serif"'
_SHARP: Final = 2
"""Pixels of a PNG for each of the chart."""
_ANCHORS: Final = {"start": "ls", "middle": "ms", "end": "rs"}
"""Pillow's words: left, middle or right, at the base line."""


class ChartExtraMissingError(EnvironmentProblemError):
    """Drawing a PNG needs Pillow, which is not installed."""

    code = "chart_extra_missing"
    default_remedy = (
        "Install it: pip install 'gpupool[chart]', or name the file FILE.svg, which needs nothing."
    )


def svg(shapes: Sequence[Shape]) -> bytes:
    """Return a chart as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" {_FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *map(_element, shapes),
        "</svg>",
        "",
    ]
    return "\n".join(parts).encode()


def _element(shape: Shape) -> str:
    if isinstance(shape, Box):
        title = f"<title>{escape(shape.told)}</title>" if shape.told else ""
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
            f' fill="{shape.colour}">{title}</rect>'
        )
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}" font-size="{shape.size}">'
        f"{escape(shape.text)}</text>"
    )


def png(shapes: Sequence[Shape]) -> bytes:
    """Return a chart as PNG; raises ChartExtraMissingError."""
    if find_spec("PIL") is None:
        raise ChartExtraMissingError
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH * _SHARP, HEIGHT * _SHARP), "white")
    canvas = ImageDraw.Draw(image)
    for shape in shapes:
        x, y = shape.x * _SHARP, shape.y * _SHARP
        if isinstance(shape, Box):
            right, bottom = x + shape.width * _SHARP - 1, y + shape.height * _SHARP - 1
            canvas.rectangle((x, y, max(x, right), max(y, bottom)), fill=shape.colour)
        else:
            font = ImageFont.load_default(shape.size * _SHARP)
            canvas.text((x, y), shape.text, fill="black", font=font, anchor=_ANCHORS[shape.anchor])
    content = BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


_FORMATS: Final[dict[str, Callable[[Sequence[Shape]], bytes]]] = {".svg": svg, ".png": png}


def check_file(path: Path) -> None:
    """Find out early whether a chart could be written to ``path``.

    Raises InvalidInputError for a name of neither kind or a folder that is not there, ChartExtraMissingError, or
    EnvironmentProblemError for a folder that takes no file.
    """
    kind = path.suffix.lower()
    if kind not in _FORMATS:
        raise InvalidInputError(
            f"A chart is an SVG or a PNG file; {path.name!r} is named otherwise.",
            remedy="Name it FILE.svg or FILE.png.",
        )
    if kind == ".png" and find_spec("PIL") is None:
        raise ChartExtraMissingError
    if path.is_dir():
        raise InvalidInputError(f"The chart {path} is a folder.", remedy="Name a file.")
    if not path.parent.is_dir():
        raise InvalidInputError(f"There is no folder {path.parent} for the chart.", remedy="Make it first.")
    _write(path, lambda beside: beside.touch(exist_ok=False))


def write(path: Path, shapes: Sequence[Shape]) -> None:
    """Draw a chart into the file ``path``, as its suffix says, in place of what is there.

    Raises EnvironmentProblemError where it cannot be written, ChartExtraMissingError.
    """
    content = _FORMATS[path.suffix.lower()](shapes)

    def fill(beside: Path) -> None:
        beside.write_bytes(content)
        os.replace(beside, path)

    _write(path, fill)


def _write(path: Path, fill: Callable[[Path], object]) -> None:
    """Have a new file beside ``path`` filled; nothing of it is left where it is not moved."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        try:
            fill(beside)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentProblemError(
            f"The chart {path} cannot be written: {error.strerror}.",
            remedy="Check rights and free space of that disk, or name a file elsewhere.",
        ) from error
