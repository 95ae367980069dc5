"""What the proxy can be told, as a plain dataclass: a proxy on a small machine should not pay for a framework."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.proxy.border import BorderFiles
from gpupool.recompute.proxy.framing import FRAME_MOST
from gpupool.recompute.proxy.local_socket import check_path
from gpupool.recompute.proxy.trust import Trust

DEFAULT_PORT: Final = 11989
FRAME_LIMIT: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Settings of one proxy process."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tcp: bool = True
    """Whether it listens on host and port at all."""
    unix: Path | None = None
    """A Unix socket to listen at, beside the port or instead of it; only this user may connect."""
    nodes: tuple[str, ...] = ()
    """Servers as ``host[:port]``."""
    nodes_file: Path | None = None
    """A watched file, one server a line."""
    control_url: str | None = None
    """Control, whose endpoints feed names the recompute servers of the pool."""
    token_file: Path | None = None
    """Bearer token for the feed."""
    deadline_seconds: float = 4.5
    """All the time a client gets that names none; Gigahorse clients cannot."""
    sockets: int = 12
    """Connections to a Gigahorse server at first; learned upward while it stays quick."""
    http_sockets: int = 64
    """Connections to a server of ours."""
    frame_limit: int = FRAME_LIMIT
    """Largest payload of a frame, in bytes."""
    connections: int = 4096
    """Clients connected at once."""
    client_rate: float | None = None
    """Requests a second that one client address may send; None: as many as it likes."""
    head_seconds: float = 10.0
    """How long one request may take to arrive."""
    idle_seconds: float = 300.0
    """How long a client may stay connected without a request."""
    drain_seconds: float = 30.0
    """How long requests under way may go on after the signal to stop."""
    takeover: bool = False
    """Take the listening socket from the proxy that runs at this address."""
    keep_state: bool = False
    """Listen for commands, and keep them and the history in the state folder (see `state_folder`)."""
    silent_seconds: float = 300.0
    """A client that asked regularly is told as silent after ten times its usual pause, but not before this."""
    alert_command: Path | None = None
    """Program that gets alerts as JSON on its standard input."""
    alert_url: str | None = field(default=None, repr=False)
    """Where alerts are posted as JSON; its path may be a secret."""
    log_level: str = "INFO"
    border: BorderFiles = field(default_factory=BorderFiles)
    """Who may ask."""
    trust: Trust = field(default_factory=Trust)
    """How nodes are reached that say nothing else."""
    check_answers: bool = True
    """Whether answers of servers of ours are checked."""

    def __post_init__(self) -> None:
        """Raise InvalidInputError where a value is out of its range."""
        self._check("port", self.port, 0, 65535)
        self._check("deadline", self.deadline_seconds, 0.05, 600)
        self._check("sockets", self.sockets, 1, 4096)
        self._check("frame limit", self.frame_limit, 1, FRAME_MOST)
        self._check("connections", self.connections, 1, 65536)
        self._check("drain time", self.drain_seconds, 0, 3600)
        self._check("time after which a client is silent", self.silent_seconds, 1, 7 * 86400)
        if self.client_rate is not None:
            self._check("rate of a client", self.client_rate, 0.1, 1_000_000)
        if self.unix is not None:
            check_path(self.unix)
        elif not self.tcp:
            raise InvalidInputError("The proxy listens nowhere.", remedy="Give it a port, or --unix PATH.")
        if not (self.nodes or self.nodes_file or self.control_url):
            raise InvalidInputError(
                "The proxy has no servers to forward to.",
                remedy="Name at least one with -n HOST[:PORT] (or --nodes-file, or --control).",
            )

    @staticmethod
    def _check(name: str, value: float, least: float, most: float) -> None:
        if not least <= value <= most:
            raise InvalidInputError(
                f"The {name} of the proxy is {value:g}; it must be {least:g} to {most:g}."
            )
