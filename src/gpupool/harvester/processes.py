"""Which harvester processes run here, and whether the library is really in them: the kernel's word, not a setting's."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.core.processes import identify

LIBRARY_STEM: Final = "libgpupool_harvester"
BUNDLED_STEM: Final = "libbladebit_harvester"
DAEMON: Final = "chia_daemon"
NAMES: Final = frozenset({"chia_harvester", "start_harvester"})
_WORDS: Final = 4
"""A script's name stands behind its interpreter, and behind that one's options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvesterProcess:
    """One harvester."""

    pid: int
    user: int
    ours: bool
    """Whether it is of the Chia that was asked about."""
    readable: bool
    """Whether this user may see what is loaded in it."""
    library: str | None = None
    """Path of our library in it; None where it is not loaded."""
    bundled: bool = False
    """Whether chiapos' own decompressor is loaded, as in every harvester that has started its work."""


def harvesters(chia: Path, proc: Path = Path("/proc")) -> list[HarvesterProcess]:
    """Return the harvesters that run here, by pid; ``chia`` is the folder of the Chia that is asked about."""
    roots = {str(chia), str(chia.resolve())}
    return sorted(
        (found for pid in _pids(proc) if (found := _look(proc / pid, roots))), key=lambda one: one.pid
    )


def daemons_without(variable: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the pids of Chia's daemons of this user that were started without ``variable`` in their environment.

    A daemon hands its own environment to the harvester that it starts.
    """
    found = []
    for pid in _pids(proc):
        try:
            first = (proc / pid / "cmdline").read_bytes().replace(b" ", b"\0").split(b"\0")[0]
            if os.path.basename(os.fsdecode(first)) != DAEMON:
                continue
            names = [pair.partition(b"=")[0] for pair in (proc / pid / "environ").read_bytes().split(b"\0")]
        except OSError:
            continue
        if variable.encode() not in names:
            found.append(int(pid))
    return sorted(found)


def _pids(proc: Path) -> Iterator[str]:
    try:
        yield from (name for name in os.listdir(proc) if name.isdecimal())
    except OSError:
        return


def _look(folder: Path, roots: set[str]) -> HarvesterProcess | None:
    try:
        given = (folder / "cmdline").read_bytes()
        words = given.replace(b" ", b"\0").split(b"\0")[:_WORDS]
        user = folder.stat().st_uid
    except OSError:
        return None
    names = [os.path.basename(os.fsdecode(word)) for word in words]
    if names[0] not in NAMES and not (names[0].startswith("python") and NAMES.intersection(names)):
        return None
    if folder.parent == Path("/proc") and identify(int(folder.name)) is None:
        return None  # it has ended, and nobody has taken its status
    try:
        maps = (folder / "maps").read_text(errors="replace")
    except OSError:
        ours = _names(os.fsdecode(given), roots)
        return HarvesterProcess(pid=int(folder.name), user=user, ours=ours, readable=False)
    return HarvesterProcess(
        pid=int(folder.name),
        user=user,
        ours=_names(os.fsdecode(given), roots) or _names(maps, roots),
        readable=True,
        library=_mapped(maps, LIBRARY_STEM),
        bundled=_mapped(maps, BUNDLED_STEM) is not None,
    )


def _names(text: str, roots: set[str]) -> bool:
    """Tell whether a file below one of ``roots`` is named; a title that a program has given itself names none."""
    return any(f"{root}/" in text for root in roots)


def _mapped(maps: str, stem: str) -> str | None:
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and os.path.basename(fields[5]).startswith(stem):
            return fields[5]
    return None
