"""The line that makes a machine a node: `gpupool node add` prints it, and control names it to `chutes-miner-cli`."""

import ipaddress
import shlex
from typing import Final
from urllib.parse import urlsplit

_OWN_ADDRESS: Final = "\"$(hostname -I | cut -d' ' -f1)\""
"""The machine's first address, found by its own shell."""


def join_command(token: str, name: str | None, control: str, address: str | None) -> str:
    """Return the line. The token is a variable: a command line can be read by everybody.

    ``control`` is control's address as the machine reaches it; ``address`` the machine's own, found by itself if None.
    """
    words = ["gpupool", "agent", "run", "--control", shlex.quote(control)]
    if name is not None:
        words += ["--name", name]
    words += ["--address", _OWN_ADDRESS if address is None else shlex.quote(address)]
    return f"GPUPOOL_JOIN_TOKEN={token} {' '.join(words)}"


def is_loopback(url: str) -> bool:
    """Tell whether an address of control means this very machine, so that no other one could join by it."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
