"""TCP ports: which are reserved by the pool, and which are in use on this machine right now."""

import errno
import os
import random
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

CHUTE_PORTS: Final = range(30000, 32768)
RESERVED_PORTS: Final = frozenset({30080, 30090, 30443, 30500, 32000, 32001, 32080})


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Tell whether a listener could bind ``host:port`` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True


def draw_chute_port(taken: Iterable[int], host: str = "127.0.0.1", ports: range = CHUTE_PORTS) -> int | None:
    """Return a port for a chute that is not reserved, not in ``taken`` and free on ``host``; None if none is.

    The search begins anywhere, so that two agents on one machine hardly ever draw the same port at one moment.
    """
    excluded = RESERVED_PORTS.union(taken)
    first = random.randrange(len(ports))
    candidates = (*ports[first:], *ports[:first])
    return next((port for port in candidates if port not in excluded and port_is_free(port, host)), None)


def port_holder(port: int) -> str | None:
    """Return who listens on ``port`` as ``pid 812 (nginx)``; None where this user may not see it or nobody does."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for folder in Path("/proc").glob("[0-9]*"):
        if not inodes.isdisjoint(_socket_inodes(folder)):
            with suppress(OSError):
                return f"pid {folder.name} ({(folder / 'comm').read_text().strip()})"
    return None


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _socket_inodes(process: Path) -> set[str]:
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        return found
    return found
