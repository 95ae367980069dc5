"""Which file of a workload's command lies behind its wall, so that a bare "Permission denied" can be explained.

Told to whoever asks for the workload, and never to the workload, which is not to learn what exists on this machine.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def closed_path(command: Sequence[str], allowed: Mapping[str, Iterable[str]] | None) -> Path | None:
    """Return the first existing path that ``command`` names and ``allowed`` does not open; None where there is none.

    ``allowed``: the paths by what may be done there, or None where nothing is closed. A path stands alone or behind
    ``--option=``. Its last part is not followed, since a virtual environment's Python is a link out of it.
    """
    if allowed is None:
        return None
    opened = [Path(os.path.realpath(path)) for paths in allowed.values() for path in paths]
    for argument in command:
        path = Path(argument.partition("=")[2] if argument.startswith("-") else argument)
        if path.is_absolute() and len(path.parts) > 1 and os.path.lexists(path):
            real = Path(os.path.realpath(path.parent)) / path.name
            if not any(real.is_relative_to(folder) for folder in opened):
                return path
    return None
