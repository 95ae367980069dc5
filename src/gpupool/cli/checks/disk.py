"""The disk of the state folder: room, inodes, and what the logs take of it."""

import os
from pathlib import Path
from typing import Final

from gpupool.cli.checks.finding import Finding, failed, mib, passed, warned
from gpupool.cli.checks.folder import nearest_existing

WARN_FREE: Final = 5 * 10**9
FAIL_FREE: Final = 500 * 10**6
WARN_INODES: Final = 20_000
FAIL_INODES: Final = 1_000
WARN_LOGS: Final = 256 * 2**20


def check_space(root: Path) -> Finding:
    """Tell how many bytes are free for this user where the state folder is (or will be)."""
    found = os.statvfs(nearest_existing(root))
    return judge_space(found.f_bavail * found.f_frsize)


def judge_space(free: int) -> Finding:
    """Return what ``free`` bytes mean: fewer than 5 GB warn, fewer than 500 MB fail."""
    name, measured = "disk space", f"{mib(free)} free"
    remedy = "Free space on that disk, or move the state folder to a larger one (GPUPOOL_HOME)."
    if free < FAIL_FREE:
        return failed(name, measured, "The database may refuse to write at any moment.", remedy)
    if free < WARN_FREE:
        return warned(name, measured, "A model or two will fill it.", remedy)
    return passed(name, measured)


def check_inodes(root: Path) -> Finding:
    """Tell how many files can still be made there."""
    found = os.statvfs(nearest_existing(root))
    return judge_inodes(found.f_favail, found.f_files)


def judge_inodes(free: int, total: int) -> Finding:
    """Return what ``free`` of ``total`` inodes mean; a file system that does not count them has 0 in total."""
    name = "inodes"
    if not total:
        return passed(name, "not limited by this file system")
    measured, remedy = f"{free} of {total} free", "Remove small files from that disk, or use another one."
    if free < FAIL_INODES:
        return failed(name, measured, "Soon no file can be made.", remedy)
    if free < WARN_INODES:
        return warned(name, measured, "Few more files can be made.", remedy)
    return passed(name, measured)


def check_logs(folder: Path) -> Finding:
    """Tell what the logs of our own processes take."""
    sizes = {path.name: size for path in _entries(folder) if (size := _size(path)) is not None}
    name, total = "logs", sum(sizes.values())
    measured = f"{len(sizes)} files, {mib(total)}"
    if total > WARN_LOGS:
        largest = max(sizes, key=sizes.__getitem__)
        return warned(
            name,
            measured,
            f"They should stay below {mib(WARN_LOGS)}; the largest is {largest}.",
            f"See what it repeats (`tail {folder / largest}`); `up` cuts logs while it runs.",
        )
    return passed(name, measured)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _size(path: Path) -> int | None:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return None
