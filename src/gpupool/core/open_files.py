"""How many connections a process may hold: each takes a descriptor, and the system gives a limited number of them.

A process that runs out of descriptors can neither let a client in nor reach a server, and notices too late. So the
limit is looked at when it starts, and fewer connections are let in where it is low.
"""

from contextlib import suppress
from typing import Final

import structlog

_RESERVE: Final = 64
"""Descriptors for everything but connections; a third of them where there are few."""
log = structlog.get_logger(__name__)


def allow_most() -> int | None:
    """Raise this process' limit of open files as far as it may, and return it; None where there is no such limit."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return None if soft == resource.RLIM_INFINITY else soft


def connections_within(limit: int | None, wanted: int, each: int = 1) -> int:
    """Return how many connections there is room for, ``wanted`` at most; says so where these are fewer.

    ``limit``: the descriptors that this process may have, as of `allow_most`; ``each``: how many a connection takes.
    """
    if limit is None:
        return wanted
    room = max(1, (limit - min(_RESERVE, limit // 3)) // each)
    if room < wanted:
        log.warning(
            "few_open_files",
            limit=limit,
            connections=room,
            wanted=wanted,
            remedy="Raise the limit of open files: ulimit -n, or LimitNOFILE= of the systemd unit.",
        )
    return min(wanted, room)
