"""Where the code of workloads lies on this machine, for the allow-list, without ever opening the state folder."""

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import gpupool

_NAMED_BY: Final = ("PYTHONPATH", "LD_LIBRARY_PATH")
_PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")


@cache
def code_paths() -> tuple[Path, ...]:
    """Return the folders of interpreter, packages and libraries that a workload needs to read and run."""
    named = [part for name in _NAMED_BY for part in os.environ.get(name, "").split(os.pathsep)]
    found = [
        *(sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(gpupool.__file__).parent.parent)),
        # Not all of sys.path: where Python was started as a module, the folder it was started in is part of it.
        *(part for part in sys.path if Path(part).name in _PACKAGE_FOLDERS),
        *(part for part in named if os.path.isabs(part)),
    ]
    return tuple(dict.fromkeys(path for item in found if (path := Path(item)).exists() and path != Path("/")))


def without(path: Path, secret: Path) -> Iterator[Path]:
    """Yield ``path``, or where ``secret`` lies in it, its parts around the secret; nothing of the secret itself.

    Compares what the paths lead to, so a symlink into the secret opens nothing.
    """
    real, hidden = path.resolve(), secret.resolve()
    if real == hidden or hidden in real.parents:
        return
    if real not in hidden.parents:
        yield path
        return
    try:
        inner = sorted(real.iterdir())
    except OSError:
        return
    for part in inner:
        yield from without(part, secret)
