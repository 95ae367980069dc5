"""The proxy's Unix socket: where a harvester of the same machine asks without a port, and only its own user may.

A path outlives the process that listened there. So what lies there is asked first: a dead socket is replaced, a live
one is another proxy's and is left alone, and anything that is no socket is never touched.
"""

import contextlib
import errno
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError, PortTakenError, UnsupportedError
from gpupool.core.listening import BACKLOG

LONGEST: Final = 107
"""Bytes of a path that fit into an address."""
_FAMILY: Final = getattr(socket, "AF_UNIX", None)
"""None on systems whose Python has no Unix sockets."""
_ASK_SECONDS: Final = 5.0


def check_path(path: Path) -> None:
    """Raise InvalidInputError where nobody could listen at ``path``."""
    if not path.is_absolute() or len(os.fsencode(path)) > LONGEST or "\0" in str(path):
        raise InvalidInputError(
            f"The Unix socket {path} cannot be used: its path must be absolute and at most {LONGEST} bytes long.",
            remedy="Name a shorter one, such as /run/gpupool/sidecar.sock.",
        )


def listen_at_path(path: Path, *, replacing: bool = False) -> socket.socket:
    """Return a socket that listens at ``path``, mode 0600; the folder is made (mode 0700) where it is missing.

    ``replacing``: whoever listens there now is about to leave. Raises PortTakenError where somebody else listens,
    EnvironmentProblemError where the path can't be used.
    """
    if sys.platform == "win32":
        raise UnsupportedError("Windows has no Unix sockets here.", remedy="Leave --unix out and use a port.")
    check_path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_free(path, replacing=replacing)
        temporary.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Its final mode before anybody can find it, so that no stranger is connected for a moment.
            mask = os.umask(0o177)
            try:
                listener.bind(_bindable(temporary, folder))
            finally:
                os.umask(mask)
        finally:
            os.close(folder)
        listener.listen(BACKLOG)
        os.replace(temporary, path)
    except PortTakenError:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise EnvironmentProblemError(
            f"The proxy cannot listen at {path}: {error.strerror or error}.",
            remedy="Name a path in a folder that this user may write, with --unix.",
        ) from error
    return listener


def _bindable(path: Path, folder: int) -> str:
    """Return a name of ``path`` that fits into an address: the temporary one is longer than the one it becomes."""
    if len(os.fsencode(path)) <= LONGEST or sys.platform != "linux":
        return str(path)
    return f"/proc/self/fd/{folder}/{path.name}"


def _check_free(path: Path, *, replacing: bool) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    if not replacing and is_live(path):
        raise PortTakenError(
            f"A process listens at {path} already.",
            remedy="Stop it, name another path with --unix, or replace a running proxy that has a port with --takeover.",
        )


def is_live(path: Path) -> bool:
    """Tell whether somebody listens at ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ASK_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            # A full queue, and one that may not be joined, have somebody at their end.
            return error.errno in {errno.EAGAIN, errno.EACCES, errno.EPERM} or isinstance(error, TimeoutError)
    return True


def leave_path(path: Path, inode: int) -> None:
    """Remove the socket at ``path`` unless another process has put its own there."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()


def is_local(transport_socket: object) -> bool:
    """Tell whether a connection came through a Unix socket, given the socket of its transport."""
    return _FAMILY is not None and getattr(transport_socket, "family", None) == _FAMILY
