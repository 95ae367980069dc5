"""Addresses of servers and lists, as operators write them in flags, variables and files.

One grammar everywhere: ``host``, ``host:port``, ``[IPv6]:port`` or a bare IPv6 address, where a port left out is
11989; lists with commas, repeated options, or both. What people write by mistake (a URL, the name of the variable
with its value) is refused with the reason, since the original programs fail on it much later and without one.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv6Address
from typing import Final

from gpupool.core.errors import InvalidInputError

DEFAULT_PORT: Final = 11989
MAX_LIST_LENGTH: Final = 4096
"""Entries of one list."""
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_BRACKETED: Final = re.compile(r"\[(?P<host>[^\]]*)\](:(?P<port>.*))?")

Address = tuple[str, int]
"""Host (an IPv6 address without brackets) and port."""


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Return host and port of ``host``, ``host:port``, ``[v6]``, ``[v6]:port`` or a bare IPv6 address.

    Raises InvalidInputError where it is none of these, or the port is not 1 to 65535.
    """
    given = text.strip()
    _refuse_what_is_no_address(given)
    bracketed = _BRACKETED.fullmatch(given)
    if bracketed:
        return _ipv6(bracketed["host"], given), _port(bracketed["port"], given, default_port)
    if given.count(":") > 1:
        return _ipv6(given, given), default_port
    host, colon, port = given.partition(":")
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise _bad(given, "the host is not a name or an address")
    return host, _port(port if colon else None, given, default_port)


def parse_list(values: str | Iterable[str]) -> tuple[str, ...]:
    """Return the entries of a comma list, or of an option given several times, each of which may be such a list."""
    texts = [values] if isinstance(values, str) else values
    entries = tuple(entry.strip() for text in texts for entry in text.split(",") if entry.strip())
    if len(entries) > MAX_LIST_LENGTH:
        raise InvalidInputError(f"A list has at most {MAX_LIST_LENGTH} entries; this one has {len(entries)}.")
    return entries


def parse_addresses(values: str | Iterable[str], default_port: int = DEFAULT_PORT) -> tuple[Address, ...]:
    """Return the addresses of a list in their order, each once; errors as for `parse_address`."""
    return tuple(dict.fromkeys(parse_address(entry, default_port) for entry in parse_list(values)))


def format_address(address: Address) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse_what_is_no_address(given: str) -> None:
    if not given:
        raise InvalidInputError("The address is empty.", remedy="Write HOST or HOST:PORT.")
    if "://" in given:
        raise _bad(given, "it is a URL", "Leave out the scheme: write HOST or HOST:PORT.")
    if "=" in given:
        raise _bad(given, "it holds a variable's name too", "Write only what stands after the =.")


def _ipv6(host: str, given: str) -> str:
    try:
        return str(IPv6Address(host))
    except ValueError as error:
        raise _bad(given, "it has several colons but is no IPv6 address") from error


def _port(text: str | None, given: str, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise _bad(given, "the port is not a number from 1 to 65535")
    return int(text)


def _bad(given: str, reason: str, remedy: str | None = None) -> InvalidInputError:
    return InvalidInputError(
        f"{given[:100]!r} is not an address: {reason}.",
        remedy=remedy or "Write HOST, HOST:PORT or [IPv6]:PORT.",
    )
