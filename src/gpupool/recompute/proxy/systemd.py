"""What systemd keeps for the proxy across a restart: the listening socket, and clients between two requests.

A socket unit holds the listening socket, so who connects while no proxy runs waits in its queue. With
``FileDescriptorStoreMax=`` in the service, a proxy that stops also leaves its kept connections with systemd, and the
next one goes on with them: `systemctl restart` costs no client anything. Nothing here needs a library of systemd's;
the two protocols are variables, descriptors from 3 on, and datagrams.
"""

import asyncio
import os
import select
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.proxy.framing import Speech
from gpupool.recompute.proxy.heirs import descriptor_of

FIRST_DESCRIPTOR: Final = 3
CLIENT_PREFIX: Final = "client-"
FLUSH_SECONDS: Final = 5.0
_PASSED: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


@dataclass(slots=True)
class Kept:
    """What systemd has passed."""

    listener: socket.socket | None = None
    local: socket.socket | None = None
    """A Unix socket that listens."""
    clients: list[tuple[str, int]] = field(default_factory=list)
    """What each connection speaks, and its descriptor."""


def kept_for_us() -> Kept:
    """Return what systemd has kept; nothing where it did not start this process.

    The variables are taken away, so that no child takes them for its own. Raises InvalidInputError where there is
    more than one listening socket of a kind.
    """
    process, count, names = (os.environ.pop(name, "") for name in _PASSED)
    kept = Kept()
    if process != str(os.getpid()) or not count.isdigit():
        return kept
    for descriptor, name in zip(
        range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count)), _names(names, int(count)), strict=True
    ):
        os.set_inheritable(descriptor, False)
        if name.startswith(CLIENT_PREFIX):
            kept.clients.append((name.removeprefix(CLIENT_PREFIX), descriptor))
        else:
            _take(kept, _listener(descriptor))
    return kept


def _take(kept: Kept, found: socket.socket) -> None:
    if found.family != socket.AF_UNIX and kept.listener is None:
        kept.listener = found
    elif found.family == socket.AF_UNIX and kept.local is None:
        kept.local = found
    else:
        found.close()
        raise InvalidInputError(
            "systemd passes more than one listening socket of a kind; the proxy takes one TCP and one Unix socket.",
            remedy="Leave one ListenStream= of each in the socket unit.",
        )


def _names(given: str, count: int) -> list[str]:
    names = given.split(":") if given else []
    return (names + [""] * count)[:count]


def _listener(descriptor: int) -> socket.socket:
    found = socket.socket(fileno=descriptor)
    fits = (
        found.family in {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX} and found.type == socket.SOCK_STREAM
    )
    if found.family == socket.AF_UNIX:
        fits = fits and str(found.getsockname()).startswith("/")
    if not fits or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        found.close()
        raise InvalidInputError(
            "What systemd passes is no stream socket that listens.",
            remedy="Write ListenStream=HOST:PORT, or a path, into the socket unit.",
        )
    return found


class Notifier:
    """Tells systemd how it stands; does nothing where nobody listens."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "") if sys.platform == "linux" else ""

    @property
    def listens(self) -> bool:
        """Whether there is somebody to tell."""
        return bool(self._address)

    def tell(self, *lines: str, descriptors: Iterable[int] = ()) -> bool:
        """Send lines such as ``READY=1``; return whether they were taken."""
        if not self._address:
            return False
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            try:
                sender.connect(name)
                socket.send_fds(sender, ["\n".join(lines).encode()], list(descriptors))
            except OSError:
                return False
        return True

    def flush(self) -> None:
        """Wait until everything told was read: systemd drops what an ended process has said."""
        reading, writing = os.pipe()
        try:
            told = self.tell("BARRIER=1", descriptors=[writing])
            os.close(writing)
            if told:
                poller = select.poll()
                poller.register(reading, 0)
                poller.poll(FLUSH_SECONDS * 1000)
        finally:
            os.close(reading)


class Store:
    """Leaves clients with systemd until the next proxy starts."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    def take(self, speech: Speech, transport: asyncio.Transport) -> bool:
        """Put a connection into systemd's store."""
        descriptor = descriptor_of(transport)
        return descriptor is not None and self._notifier.tell(
            "FDSTORE=1", f"FDNAME={CLIENT_PREFIX}{speech.value}", descriptors=[descriptor]
        )


def forget_clients(notifier: Notifier) -> None:
    """Take back all clients, so that each ends when this process closes it."""
    for speech in Speech:
        notifier.tell("FDSTOREREMOVE=1", f"FDNAME={CLIENT_PREFIX}{speech.value}")
