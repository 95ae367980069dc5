"""What an installation costs: packages and megabytes of the base set and of `./up`'s environment.

Counted from the records of the installed releases that a lock names, without pip, setuptools and the product
itself, byte code included. Limits are those of the design: base < 60 packages and < 160 MB, `./up` < 650 MB.

Run: `make bench`, or `.venv/bin/python benchmarks/footprint.py` in an environment made from `locks/all.txt`.
"""

import re
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

LOCKS = Path(__file__).resolve().parent.parent / "locks"
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Limit:
    """The budget of one lock; None where the design sets none."""

    lock: str
    packages: int | None
    megabytes: int


LIMITS = (Limit("base", 60, 160), Limit("up", None, 650))


def locked_names(lock: str) -> list[str]:
    """Return the names that a lock pins."""
    text = (LOCKS / f"{lock}.txt").read_text()
    return sorted(set(re.findall(r"^([a-z0-9][a-z0-9._-]*)==", text, re.MULTILINE)))


def installed(names: list[str]) -> list[Distribution]:
    """Return those that are installed here; markers leave some out on every machine."""
    found = []
    for name in names:
        try:
            found.append(distribution(name))
        except PackageNotFoundError:
            continue
    return found


def size_of(release: Distribution) -> int:
    """Return the bytes of a release's files on this disk, with their byte code."""
    paths: set[Path] = set()
    for file in release.files or []:
        path = Path(str(file.locate()))
        paths.add(path)
        if path.suffix == ".py":
            paths.update(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> int:
    """Print one line a lock; return 1 where a limit is broken."""
    broken = False
    for limit in LIMITS:
        releases = installed(locked_names(limit.lock))
        megabytes = sum(size_of(release) for release in releases) / MEGABYTE
        allowed = f"< {limit.packages} packages, " if limit.packages else ""
        print(
            f"{limit.lock:5} {len(releases):3} packages {megabytes:6.0f} MB   (limit: {allowed}< {limit.megabytes} MB)"
        )
        broken |= megabytes >= limit.megabytes
        broken |= limit.packages is not None and len(releases) >= limit.packages
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
