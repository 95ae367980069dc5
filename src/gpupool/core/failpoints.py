"""Fail points: named places where a test lets this process die at once, as in a power cut.

Test support, and nothing else: without the environment variable a point costs one comparison. With it, the variable
names a file. A test writes ``name`` or ``name:nth`` into that file; the process that reaches the point of that name
(for the nth time since then) removes the file and kills itself with SIGKILL, so nothing gets a chance to clean up.
A process that is started again meets no file and lives. Every point reached is noted in ``<file>.reached``, so that a
test can tell whether it has been to all of them.
"""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final

VARIABLE: Final = "GPUPOOL_FAILPOINT_FILE"
_FILE: Final = os.environ.get(VARIABLE)
_reached: Final[Counter[str]] = Counter()


def reach(name: str) -> None:
    """Pass the point ``name``, or die there when a test has armed it."""
    if _FILE is not None:
        _pass(Path(_FILE), name)


def _pass(file: Path, name: str) -> None:
    with file.with_name(f"{file.name}.reached").open("a") as notes:
        notes.write(f"{name}\n")
    try:
        armed = file.read_text().strip()
    except FileNotFoundError:
        _reached.clear()
        return
    wanted, _, nth = armed.partition(":")
    if name != wanted:
        return
    _reached[name] += 1
    if _reached[name] >= int(nth or 1):
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
