"""Where a look-up may be sent: a server or a proxy, which to the client are the same."""

from dataclasses import dataclass
from typing import Self

from gpupool.recompute.addresses import DEFAULT_PORT, format_address, parse_address

_PLAIN, _SECURE = "http://", "https://"


@dataclass(frozen=True, slots=True)
class Host:
    """An address in the client's list."""

    host: str
    """Name or address; IPv6 without brackets."""
    port: int = DEFAULT_PORT
    tls: bool = False

    @classmethod
    def parse(cls, text: str, default_port: int = DEFAULT_PORT) -> Self:
        """Read ``HOST``, ``HOST:PORT``, ``[IPv6]:PORT``, or one of them after ``http://`` or ``https://``.

        Raises InvalidInputError for anything else.
        """
        given = text.strip()
        secure = given.startswith(_SECURE)
        if secure or given.startswith(_PLAIN):
            given = given.partition("://")[2].removesuffix("/")
        host, port = parse_address(given, default_port)
        return cls(host, port, secure)

    @property
    def name(self) -> str:
        """``host:port``, as it stands in messages."""
        return format_address((self.host, self.port))

    @property
    def url(self) -> str:
        """Where its HTTP paths begin."""
        return f"{_SECURE if self.tls else _PLAIN}{self.name}"
