"""Drop-in commands step back where the original program of the same name is installed.

A farm that has the original on its PATH wants its own server, whose protocol is closed to us. Whoever installs this
package beside it must not find another program under the old name.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

GUARD: Final = "GPUPOOL_DROP_IN_YIELDED"
"""Set for the program that is started instead, so that two drop-ins cannot hand over to each other for ever."""
_LOOK_BYTES: Final = 4096


def original_program(name: str, path: str, ours: Path) -> Path | None:
    """Return the first program ``name`` on ``path`` that is not ``ours`` nor another copy of this drop-in."""
    for candidate in _candidates(name, path):
        if not _same(candidate, ours) and not _is_drop_in(candidate):
            return candidate
    return None


def yield_to_original(name: str, arguments: Sequence[str], instead: str) -> None:
    """Become the original program ``name`` if there is one on PATH, saying so; return where there is none.

    ``instead``: the command that starts ours under all circumstances.
    """
    if os.environ.get(GUARD) == name:
        return
    found = original_program(name, os.environ.get("PATH", os.defpath), Path(sys.argv[0]).absolute())
    if found is None:
        return
    sys.stderr.write(f"{name}: starting the original program, {found}. To start gpupool's: {instead}\n")
    sys.stderr.flush()
    environment = {**os.environ, GUARD: name}
    if sys.platform == "win32":
        import subprocess

        # There a program that replaces itself leaves its console to two of them.
        sys.exit(subprocess.call([str(found), *arguments], env=environment))
    os.execve(found, [name, *arguments], environment)


def _candidates(name: str, path: str) -> Iterator[Path]:
    names = [f"{name}.exe", name] if sys.platform == "win32" else [name]
    for folder in path.split(os.pathsep):
        for file in names:
            candidate = Path(folder or ".") / file
            if candidate.is_file() and os.access(candidate, os.X_OK):
                yield candidate


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


def _is_drop_in(program: Path) -> bool:
    """Tell whether a program is a launcher that imports this package, of whichever environment."""
    try:
        with program.open("rb") as file:
            head = file.read(_LOOK_BYTES)
    except OSError:
        return False
    return head.startswith(b"#!") and b"gpupool" in head
