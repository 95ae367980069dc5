"""Files that survive a crash at any instant and that only their owner reads.

A reader sees the whole old file or the whole new one. Secrets get mode 0600 before their first byte is written.
"""

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gpupool.core import failpoints
from gpupool.core.errors import EnvironmentProblemError

_NO_WAITING: Final[int] = getattr(os, "O_NONBLOCK", 0)
_UNFINISHED: Final = re.compile(r"[0-9a-f]{12}")


def ensure_private_dir(path: Path) -> Path:
    """Make ``path`` (and its parents) if need be, with mode 0700, and return it.

    Raises EnvironmentProblemError where the folder cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(path, 0o700)
    except OSError as error:
        raise EnvironmentProblemError(
            f"The folder {path} cannot be used: {error.strerror}.",
            remedy="Give a writable folder with GPUPOOL_HOME, or mend the rights of this one.",
        ) from error
    return path


def open_own_folders(top: Path) -> None:
    """Give back to their owner the folders from ``top`` down that it may not enter or change; links are not followed.

    For a tree that is to be removed, when nothing writes to it any more: only root removes what lies in a folder of
    mode 0. What cannot be opened stays. Does nothing as root, which needs none of it.
    """
    waiting = [top] if os.geteuid() else []
    while waiting:
        folder = waiting.pop()
        with suppress(OSError):
            descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
            finally:
                os.close(descriptor)
            with os.scandir(folder) as entries:
                waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def write_private(path: Path, content: str | bytes) -> None:
    """Replace ``path`` by ``content`` in one step, readable by its owner only, synced to disk.

    Raises EnvironmentProblemError where it cannot be written (no right, disk full).
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            failpoints.reach(f"file.{path.name}")
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EnvironmentProblemError(
            f"The file {path} cannot be written: {error.strerror}.",
            remedy="Check rights and free space of that disk.",
        ) from error


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk, so that a new name survives a loss of power; nothing to do on Windows."""
    if os.name == "nt":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_unfinished(path: Path) -> None:
    """Remove what a crash left of an earlier `write_private` to ``path``; only for the one process that writes it."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        if _UNFINISHED.fullmatch(leftover.name.removeprefix(f".{path.name}.")):
            leftover.unlink(missing_ok=True)


def write_private_json(path: Path, value: object) -> None:
    """Write ``value`` as JSON with `write_private`."""
    write_private(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def read_json(path: Path) -> Any | None:
    """Return the parsed content, or None where the file is missing or was never finished."""
    try:
        # A pipe in its place is read as what it is, instead of being waited for.
        with open(path, opener=lambda name, flags: os.open(name, flags | _NO_WAITING)) as file:
            return json.load(file)
    except (FileNotFoundError, ValueError, RecursionError):
        return None
