"""Finds the Python environment that a farm's Chia runs in, without running anything of it.

Chia comes in two forms. In a virtual environment (pip, or `install.sh` in a clone) everything is a file that can be
read, and a `.pth` file reaches every program of it. The distribution's packages and the GUI bring one frozen program
(PyInstaller) under /opt/chia: it reads no `.pth`, so only its environment variables can put a library in front.
"""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gpupool.core.errors import NotFoundError

TRIED: Final = {"chia-blockchain": ("2.7.5",), "chiapos": ("2.0.12",)}
"""Releases that this was tried with."""
FITTING_CHIAPOS: Final = "2.0."
"""The releases of chiapos that take their decompressor from a library of its own with our seven functions."""
_DIST_INFO: Final = re.compile(r"(chia_blockchain|chiapos)-([0-9][0-9a-z.+]*)\.dist-info", re.ASCII)
_FROZEN_PLACES: Final = ("", "resources/app.asar.unpacked/daemon")
_USUAL: Final = ("/opt/chia", "/usr/lib/chia-blockchain", "/usr/share/chia-blockchain")
_ELF: Final = b"\x7fELF"


class Kind(StrEnum):
    """How Chia is installed."""

    VENV = "environment"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChiaEnvironment:
    """One installation of chia-blockchain; versions are None where they are not told."""

    kind: Kind
    root: Path
    site_packages: Path | None = None
    """Where a `.pth` file is read; None for a frozen one."""
    chia: str | None = None
    chiapos: str | None = None
    bundled: bool = False
    """Whether chiapos brings its decompressor as a library of its own."""

    @property
    def programs(self) -> Path:
        """The folder of `chia`."""
        return self.root / "bin" if self.kind is Kind.VENV else self.root


def find(given: Path | None) -> ChiaEnvironment:
    """Return the environment at ``given`` (its folder, a clone's, or the program `chia`), else the one found here.

    Raises NotFoundError where there is none.
    """
    if given is not None:
        found = next(filter(None, map(inspect, _around(given.absolute()))), None)
        if found is None:
            raise NotFoundError(
                f"There is no chia-blockchain at {given}.",
                remedy="Name the folder of its virtual environment (where bin/chia is), such as"
                " --chia ~/chia-blockchain/venv.",
            )
        return found
    looked = list(_usual_places())
    found = next(filter(None, (inspect(around) for place in looked for around in _around(place))), None)
    if found is None:
        raise NotFoundError(
            "No chia-blockchain was found here.",
            remedy="Name its virtual environment with --chia, or activate it and run this again.",
        )
    return found


def _usual_places() -> Iterator[Path]:
    active = os.environ.get("VIRTUAL_ENV")
    if active:
        yield Path(active)
    program = shutil.which("chia")
    if program:
        yield Path(program)
    yield Path.home() / "chia-blockchain"
    yield from map(Path, _USUAL)


def _around(place: Path) -> Iterator[Path]:
    """Give the folders that ``place`` may mean: itself, what holds its program, the environment of a clone."""
    if place.is_file():
        real = place.resolve()
        yield real.parent.parent
        yield real.parent
        return
    yield place
    yield place / "venv"
    yield place / ".venv"


def inspect(folder: Path) -> ChiaEnvironment | None:
    """Return what is installed in ``folder``; None where that is not Chia."""
    if (folder / "pyvenv.cfg").is_file():
        for site in sorted(folder.glob("lib/python3.*/site-packages")):
            versions = _versions(site)
            if "chia_blockchain" in versions:
                return ChiaEnvironment(
                    kind=Kind.VENV,
                    root=folder,
                    site_packages=site,
                    chia=versions["chia_blockchain"],
                    chiapos=versions.get("chiapos"),
                    bundled=_has_bundled(site),
                )
        return None
    for place in _FROZEN_PLACES:
        root = folder / place if place else folder
        if _is_program(root / "chia"):
            inside = root / "_internal" if (root / "_internal").is_dir() else root
            versions = _versions(inside)
            return ChiaEnvironment(
                kind=Kind.FROZEN,
                root=root,
                chia=versions.get("chia_blockchain"),
                chiapos=versions.get("chiapos"),
                bundled=_has_bundled(inside),
            )
    return None


def _versions(site: Path) -> dict[str, str]:
    try:
        names = os.listdir(site)
    except OSError:
        return {}
    return {match[1]: match[2] for name in names if (match := _DIST_INFO.fullmatch(name))}


def _has_bundled(site: Path) -> bool:
    return any(site.glob("chiapos.libs/libbladebit_harvester*.so*")) or any(
        site.glob("libbladebit_harvester*.so*")
    )


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == _ELF
    except OSError:
        return False
