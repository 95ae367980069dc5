"""Modules in their compiled form, where one lies ready that was made from exactly these sources.

Python's own rule, an extension beside its source wins, would go on running what was compiled before an edit. So compiled
modules lie in a folder of their own with a digest of what they were made from, and are taken as a whole or not at all:
whoever edits a source runs the source. Nothing but speed depends on which form runs.
"""

import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

VARIABLE: Final = "GPUPOOL_COMPILED"
"""``0`` runs the sources in any case."""
DIGEST: Final = "digest"
_PACKAGES: Final = Path(__file__).resolve().parents[2]


def source_of(module: str) -> Path:
    """Return the file of one of our modules."""
    return _PACKAGES / Path(*module.split(".")).with_suffix(".py")


def modules_of(packages: Iterable[str]) -> list[str]:
    """Return the modules that lie in these packages themselves, by name."""
    return [
        f"{package}.{source.stem}"
        for package in packages
        for source in _PACKAGES.joinpath(*package.split(".")).glob("*.py")
    ]


def digest_of(modules: Iterable[str]) -> str:
    """Return what tells the compiled form made from these modules: their sources, and the Python that runs it."""
    digest = hashlib.sha256(sys.implementation.cache_tag.encode() if sys.implementation.cache_tag else b"")
    for module in sorted(modules):
        source = source_of(module).read_bytes()
        digest.update(f"\n{module} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()


def folders() -> list[Path]:
    """Return where compiled modules may lie: in the installed package, or in the environment of a checkout."""
    return [_PACKAGES / "gpupool" / "_compiled", Path(sys.prefix) / "share" / "gpupool" / "compiled"]


def prefer_compiled(
    group: str, modules: Sequence[str], packages: Sequence[str], places: Sequence[Path] | None = None
) -> str | None:
    """Have imports from now on take the compiled form of ``modules``; return why the sources run, None where not.

    ``group``: the library that holds them all; ``packages``: where they and all that they import lie, since a compiled
    module holds constants of others too. Modules that are loaded already stay as they are.
    """
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE} is 0"
    try:
        wanted = digest_of(modules_of(packages))
    except OSError:
        return "the sources are not here"
    why = "none is there"
    for folder in folders() if places is None else places:
        try:
            made_of = (folder / DIGEST).read_text().strip()
        except OSError:
            continue
        if made_of == wanted:
            sys.meta_path.insert(0, _Finder(folder, {*modules, f"{group}__mypyc"}))
            return None
        why = "it was made from other sources"
    return why


class _Finder(MetaPathFinder):
    """Finds the compiled modules of one folder."""

    def __init__(self, folder: Path, modules: set[str]) -> None:
        self._folder, self._modules = folder, modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is; None for every other one."""
        if fullname not in self._modules:
            return None
        base = self._folder / Path(*fullname.split("."))
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = base.with_name(base.name + suffix)
            if file.is_file():
                loader = ExtensionFileLoader(fullname, str(file))
                return spec_from_file_location(fullname, file, loader=loader)
        return None
