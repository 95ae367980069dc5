"""The listening sockets, open or shut: who connects while they are shut waits in the kernel's queue, and nobody is lost.

A queue belongs to its socket, not to a process, so two proxies that hold the same TCP socket can take turns at it. A
Unix socket is found by its path: a successor puts its own there.
"""

import asyncio
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import structlog

from gpupool.core.errors import GpupoolError
from gpupool.core.listening import BACKLOG
from gpupool.recompute.addresses import Address
from gpupool.recompute.proxy.local_socket import leave_path, listen_at_path
from gpupool.recompute.proxy.proxying import ProxyCore

# Newer asyncio removes a path that it has not made, at every shutting of the door.
_KEEP_PATH: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LocalListener:
    """A Unix socket that listens, and its path."""

    listener: socket.socket
    path: Path
    inode: int
    lent: bool = False
    """Somebody else (systemd) holds the path; it stays."""

    @classmethod
    def at(cls, listener: socket.socket, path: Path, *, lent: bool = False) -> Self:
        """Return it for a socket that listens at ``path``."""
        try:
            inode = path.lstat().st_ino
        except OSError:
            inode = 0  # somebody has removed it since
        return cls(listener, path, inode, lent)

    @property
    def is_lost(self) -> bool:
        """Whether the path leads elsewhere by now, or nowhere."""
        try:
            return not self.lent and self.path.lstat().st_ino != self.inode
        except OSError:
            return True

    def close(self) -> None:
        """Let go of the socket, and of the path where it is still ours."""
        self.listener.close()
        if not self.lent:
            leave_path(self.path, self.inode)


class Door:
    """Lets clients of the listening sockets in to a proxy."""

    def __init__(
        self, core: ProxyCore, listener: socket.socket | None, local: LocalListener | None = None
    ) -> None:
        """One of both at least is there."""
        self.listener = listener
        self.local = local
        self._core = core
        self._server: asyncio.Server | None = None
        self._local_server: asyncio.Server | None = None

    @property
    def address(self) -> Address:
        """Host and port that it listens on; port 0 where there is a Unix socket only."""
        if self.listener is None:
            return "localhost", 0
        host, port = self.listener.getsockname()[:2]
        return str(host), int(port)

    async def open(self) -> None:
        """Let clients in, those that have waited first."""
        loop = asyncio.get_running_loop()
        if self.listener is not None and self._server is None:
            self._server = await loop.create_server(
                self._core.client, sock=self.listener.dup(), backlog=BACKLOG
            )
        if self.local is not None and self.local.is_lost:
            self._regain(self.local)
        if self.local is not None and self._local_server is None:
            more = _KEEP_PATH if isinstance(loop, asyncio.BaseEventLoop) else {}
            self._local_server = await loop.create_unix_server(
                self._core.client, sock=self.local.listener.dup(), backlog=BACKLOG, **more
            )

    def _regain(self, lost: LocalListener) -> None:
        """Put our socket at its path again: a successor that has put its own there is gone."""
        try:
            self.local = LocalListener.at(listen_at_path(lost.path), lost.path)
        except GpupoolError as error:
            log.warning("unix_socket_lost", path=str(lost.path), why=error.message, remedy=error.remedy)
            return
        self._shut_local()
        lost.close()

    def shut(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._shut_local()

    def _shut_local(self) -> None:
        if self._local_server is not None:
            self._local_server.close()
            self._local_server = None

    def close(self) -> None:
        """Let go of the sockets; a queue ends with the last one that holds its socket."""
        self.shut()
        if self.listener is not None:
            self.listener.close()
        if self.local is not None:
            self.local.close()
