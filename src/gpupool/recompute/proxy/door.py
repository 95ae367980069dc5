"""The listening socket, open or shut: who connects while it is shut waits in the kernel's queue, and nobody is lost.

The queue belongs to the socket, not to a process, so two proxies that hold the same socket can take turns at it.
"""

import asyncio
import socket

from gpupool.core.listening import BACKLOG
from gpupool.recompute.addresses import Address
from gpupool.recompute.proxy.proxying import ProxyCore


class Door:
    """Lets clients of one listening socket in to a proxy."""

    def __init__(self, core: ProxyCore, listener: socket.socket) -> None:
        self.listener = listener
        self._core = core
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> Address:
        """Host and port that it listens on."""
        host, port = self.listener.getsockname()[:2]
        return str(host), int(port)

    async def open(self) -> None:
        """Let clients in, those that have waited first."""
        if self._server is None:
            self._server = await asyncio.get_running_loop().create_server(
                self._core.client, sock=self.listener.dup(), backlog=BACKLOG
            )

    def shut(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Let go of the socket; its queue ends with the last one that holds it."""
        self.shut()
        self.listener.close()
