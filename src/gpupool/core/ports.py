"""TCP ports: which are reserved by the pool, and which are in use on this machine right now."""

import errno
import socket
from collections.abc import Iterable
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


def draw_chute_port(
    taken: Iterable[int], host: str = "127.0.0.1", ports: Iterable[int] = CHUTE_PORTS
) -> int | None:
    """Return the lowest port for a chute that is not reserved, not in ``taken`` and free on ``host``; None if none is."""
    excluded = RESERVED_PORTS.union(taken)
    return next((port for port in ports if port not in excluded and port_is_free(port, host)), None)
