"""A secret file that appears whole at its name, or not at all; a process that is killed meanwhile leaves nothing behind.

Most file systems of Linux have files without a name for this. Elsewhere the file has a hidden name until it is whole,
and holds a lock; what holds none belonged to a process that is dead, and is removed by whoever writes there next.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from gpupool.core.files import sync_folder

_HIDDEN: Final = ".gpupool-backup."


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file of mode 0600 that is at ``path``, synced, once the block has ended well.

    Raises OSError where it cannot be written, FileExistsError among them where a file of this name has come meanwhile.
    """
    _remove_abandoned(path.parent)
    descriptor, hidden = _begin(path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # A link fails where the name is taken; a rename would replace what is there.
            if hidden is None:
                # The folder matters not, but only with one does this follow the link, which linking to a file must.
                os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=file.fileno())
            else:
                os.link(hidden, path)
        sync_folder(path.parent)
    finally:
        if hidden is not None:
            hidden.unlink(missing_ok=True)


def _begin(folder: Path) -> tuple[int, Path | None]:
    """Return an open file, and its name where it has to have one."""
    with suppress(OSError):
        return os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600), None
    hidden = folder / f"{_HIDDEN}{secrets.token_hex(6)}"
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor, hidden


def _remove_abandoned(folder: Path) -> None:
    for leftover in folder.glob(f"{_HIDDEN}*"):
        with suppress(OSError):
            descriptor = os.open(leftover, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftover.unlink()
            finally:
                os.close(descriptor)
