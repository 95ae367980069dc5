"""How this user types ``gpupool``: in a checkout it is on no search path, so what we tell to type must say where.

Messages are written with the bare name, since control and library code cannot know; they are mended where printed.
"""

import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Final

_TYPED: Final = re.compile(r"`gpupool(?= )")


@cache
def own_command() -> str:
    """Return ``gpupool`` where the shell finds it, else the launcher beside the running Python, quoted."""
    launcher = Path(sys.executable).parent / "gpupool"
    found = shutil.which("gpupool")
    if not launcher.exists() or (found is not None and Path(found) == launcher):
        return "gpupool"
    return shlex.quote(shown_path(launcher))


def as_typed(text: str) -> str:
    """Return a message whose commands in back quotes can be typed here."""
    return _TYPED.sub(lambda _: f"`{own_command()}", text)


def shown_path(path: Path) -> str:
    """Return a path as it is typed from here: short where it lies in the working folder, else good from anywhere."""
    try:
        here = Path.cwd()
    except OSError:
        # The folder that we stood in is gone.
        return str(path)
    return str(path.relative_to(here)) if path != here and path.is_relative_to(here) else str(path)
