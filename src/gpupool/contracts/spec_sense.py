"""Wishes that are written correctly and that no pool could ever fulfil.

They are no part of the form of a spec, which old records must go on passing: they are asked where somebody wants a
workload, so that it is refused at once instead of waiting for ever.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpupool.contracts.spec import SpecFile

FIRST_OPEN_PORT: Final = 1024
"""Ports below it take a right that no workload has."""
_FILLED_IN: Final = ("port", "host")
_PLACEHOLDER: Final = re.compile(r"(?<!\$)\{([A-Za-z_]+)\}")
_LIKENESS: Final = 0.75
"""Enough for two letters that changed places. Braces have other uses in a command, so only near misses count."""
_GPU_WISHES: Final = ("min_vram_gb", "include", "exclude", "max_price")
Place = tuple[int | str, ...]


def senseless(spec: "SpecFile") -> Iterator[tuple[Place, str]]:
    """Yield each wish that cannot be fulfilled: the path of its field, and what is wrong with it."""
    if spec.gpu_count == 0:
        for field in _GPU_WISHES:
            if getattr(spec, field):
                yield (
                    (field,),
                    f"asks for GPUs, and gpu_count is 0; set gpu_count to 1 or more, or leave {field} out",
                )
    if spec.include and not set(spec.include) - set(spec.exclude):
        yield ("exclude",), "takes away every model that include names, so that none is left"
    if spec.models and not spec.openai:
        yield ("models",), "only an app that speaks the OpenAI API serves models; add openai: true"
    if spec.port is not None and spec.port < FIRST_OPEN_PORT:
        yield ("port",), f"a workload may listen on ports from {FIRST_OPEN_PORT} on only"
    yield from _misspelt(spec)


def _misspelt(spec: "SpecFile") -> Iterator[tuple[Place, str]]:
    for number, argument in enumerate(spec.command):
        for word in _PLACEHOLDER.findall(argument):
            meant = get_close_matches(word.lower(), _FILLED_IN, n=1, cutoff=_LIKENESS)
            if meant and word not in _FILLED_IN:
                yield (
                    ("command", number),
                    f"{{{word}}} is not filled in; {{port}} and {{host}} are (is {{{meant[0]}}} meant?)",
                )
