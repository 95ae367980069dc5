"""How a process of the pool begins to listen, and how it is told to stop: the same for all of them.

The socket is bound before anything else is made, so a taken port is seen before anything starts, and nobody can
take it in between.
"""

import asyncio
import errno
import signal
import socket
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, PortTakenError
from gpupool.core.ports import port_holder

BACKLOG: Final = 2048


def bind(role: str, host: str, port: int, variables: str) -> socket.socket:
    """Return a socket that listens on ``host:port`` (0 = any free port); who connects waits until it is served.

    ``role`` and ``variables`` (the prefix of ``..._HOST`` and ``..._PORT``) go into the messages. Raises
    PortTakenError where another process has the port, EnvironmentProblemError where the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers without delay only on sockets that name their protocol; it costs 40 ms each else.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        # Two sockets may be bound to one port, but only one can listen.
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            holder = port_holder(port)
            raise PortTakenError(
                f"Port {port} on {host}, wanted by {role}, is taken{f' by {holder}' if holder else ''}.",
                remedy=f"Free the port, or choose another one with --port or {variables}_PORT.",
            ) from error
        raise EnvironmentProblemError(
            f"{role[:1].upper()}{role[1:]} cannot listen on {host}:{port}: {error.strerror or error}.",
            remedy=f"Give an address of this machine with --host or {variables}_HOST.",
        ) from error
    return bound


def stop_signal() -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; the second one cancels the calling task."""
    stop, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()

    def received() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, received)
        except NotImplementedError:  # the loops of Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(received))
    return stop
