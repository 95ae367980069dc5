"""A workload's output: one file that only grows, cut now and then, and read from its end.

Rotation copies and truncates. The workload holds the file open for append, so its next line lands at the new
start, and neither a restart nor a signal is needed.

Somebody else's code has had its hands near these files, and we may be root: every one is opened as what it is, a
plain file with one name in a folder that is no symlink, and never waited for.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final, cast

from gpupool.core.errors import NotFoundError
from gpupool.runtimes.process.closing_words import closing_words

MOST_BYTES: Final = 8 * 1024 * 1024
OLDER_FILES: Final = 2
"""Kept beside the present file, as ``output.log.1`` and ``.2``."""
MOST_TAIL_BYTES: Final = 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024
_LAST_BYTES: Final = 4096


def rotate(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Move the content of a file that has reached ``most_bytes`` to ``.1`` and empty it; True when it was done.

    Of a file that is far larger only the end is kept, and a writer that outruns the copy is followed for
    ``most_bytes`` more. Lines written between the copy and the cut are lost; that is the price of not stopping it.
    """
    try:
        with _opened(path, os.O_RDWR) as source:
            size = os.fstat(source.fileno()).st_size
            if size < most_bytes:
                return False
            for number in range(OLDER_FILES, 1, -1):
                older = _older(path, number - 1)
                if os.path.lexists(older):
                    os.replace(older, _older(path, number))
            _older(path, 1).unlink(missing_ok=True)
            with _opened(_older(path, 1), os.O_WRONLY | os.O_CREAT | os.O_EXCL) as target:
                source.seek(max(0, size - most_bytes))
                copy_at_most(source, target, 2 * most_bytes)
            os.ftruncate(source.fileno(), 0)
    except FileNotFoundError:
        return False
    return True


def open_for_append(path: Path, uid: int | None) -> BinaryIO:
    """Open a workload's output for it to write to, made where it is missing and given to ``uid``; close it after.

    Raises OSError where that fails or something else lies in its place.
    """
    file = _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if uid is not None:
        os.fchown(file.fileno(), uid, uid)
    return file


def tail(path: Path, lines: int) -> str:
    """Return the last ``lines`` lines, at most 1 MiB, reaching into older files; NotFoundError when there is none."""
    if not os.path.lexists(path):
        raise NotFoundError(
            f"There is no output of {path.parent.name} on this node.",
            remedy="It has not been launched here, or its output was cleared away.",
        )
    content = b""
    for file in (path, *(_older(path, number) for number in range(1, OLDER_FILES + 1))):
        if len(content) >= MOST_TAIL_BYTES or content.count(b"\n") > lines or not file.exists():
            break
        content = _end_of(file, MOST_TAIL_BYTES - len(content)) + content
    return "".join(content.decode(errors="replace").splitlines(keepends=True)[-lines:])


def size_of(path: Path) -> int:
    """Return the bytes written so far; 0 where there is no file."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def last_words(path: Path, since: int = 0) -> str:
    """Return the last line or two of the output, at most 300 characters, for a reason; empty when there are none.

    ``since``: the size at the launch, so that an earlier launch's words are not taken for this one's.
    """
    size = size_of(path)
    fresh = size - since if size >= since else size
    if not fresh:
        return ""
    end = _end_of(path, min(fresh, _LAST_BYTES)).decode(errors="replace")
    return closing_words(end, whole=fresh <= _LAST_BYTES)


def copy_at_most(source: BinaryIO, target: BinaryIO, most: int) -> None:
    """Copy what is left of ``source``, which may be growing, but never more than ``most`` bytes."""
    while most > 0 and (piece := source.read(min(most, _PIECE_BYTES))):
        target.write(piece)
        most -= len(piece)


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _end_of(path: Path, most: int) -> bytes:
    try:
        with _opened(path, os.O_RDONLY) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return file.read(most)
    except OSError as error:
        return f"({path.name} cannot be read: {error.strerror})\n".encode()


def _opened(path: Path, flags: int) -> BinaryIO:
    """Open a plain file; raise OSError for a symlink, also in place of its folder, a second name, a pipe or a device."""
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        descriptor = os.open(
            path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=parent
        )
    finally:
        os.close(parent)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file with one name")
    mode = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}[flags & os.O_ACCMODE]
    return cast("BinaryIO", os.fdopen(descriptor, mode))
