"""Makes an external server known to a proxy: one line in the list of nodes that the proxy watches.

Other lines are the operator's and stay as they are. Several servers of one machine, one a card, share a list, so
each change is made under a lock and in one step; the proxy never reads half of it.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, GpupoolError
from gpupool.recompute.addresses import Address, format_address, parse_address

_MARK: Final = "# kept by gpupool recompute serve --external"

_NOBODY: Final = "# no server is registered"


class NodeList:
    """The line of one server in one list."""

    def __init__(self, path: Path, host: str, port: int) -> None:
        self._path = path
        self._address = format_address((_reachable(host), port))

    def add(self) -> None:
        """Put the server into the list, unless it stands there already, as the operator may have written it.

        Raises EnvironmentProblemError where the list cannot be written.
        """
        with self._changing() as lines:
            if all(_address_of(line) != parse_address(self._address) for line in lines):
                lines.append(f"{self._address} kind=frames {_MARK}")

    def remove(self) -> None:
        """Take our own line out; one that the operator wrote stays. Raises as `add` does."""
        with self._changing() as lines:
            lines[:] = [
                line
                for line in lines
                if not (line.endswith(_MARK) and _address_of(line) == parse_address(self._address))
            ]

    @contextmanager
    def _changing(self) -> Iterator[list[str]]:
        import fcntl

        try:
            with self._path.with_name(f".{self._path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                text = self._path.read_text("utf-8") if self._path.exists() else ""
                lines = text.splitlines()
                yield lines
                if lines != text.splitlines():
                    # A proxy takes a list without a byte for one that was lost.
                    self._replace("".join(f"{line}\n" for line in lines or [_NOBODY]))
        except (OSError, UnicodeDecodeError) as error:
            raise EnvironmentProblemError(
                f"The list of nodes {self._path} cannot be changed: {error}.",
                remedy="Check its path and rights, or leave out --register.",
            ) from error

    def _replace(self, text: str) -> None:
        mode = self._path.stat().st_mode & 0o777 if self._path.exists() else 0o644
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(6)}")
        fresh.write_text(text, "utf-8")
        os.chmod(fresh, mode)
        os.replace(fresh, self._path)


def _reachable(host: str) -> str:
    """Return where a proxy on this machine finds who listens on ``host``."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def _address_of(line: str) -> Address | None:
    words = line.partition("#")[0].split()
    try:
        return parse_address(words[0]) if words else None
    except GpupoolError:
        return None
