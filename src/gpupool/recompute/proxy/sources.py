"""Where nodes come from: the command line, a watched file, and control's endpoints feed.

A source that cannot be read changes nothing: the last view stays in force.
"""

import asyncio
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from gpupool.core.errors import GpupoolError, InvalidInputError
from gpupool.recompute.addresses import parse_address, parse_addresses
from gpupool.recompute.proxy.nodes import Directory, Kind, NodeWish
from gpupool.recompute.proxy.trust import OPTION_WORDS, Trust, trust_of

if TYPE_CHECKING:
    from gpupool.contracts.feed import EndpointsView

FILE_SECONDS: Final = 1.0
MOST_FILE_BYTES: Final = 1024 * 1024
log = structlog.get_logger(__name__)


def wishes_of_arguments(nodes: tuple[str, ...], trust: Trust | None = None) -> list[NodeWish]:
    """Return the nodes given with ``-n``: lists of addresses, or one address with options as in the file.

    ``trust`` is what options about TLS and tokens build on. Raises InvalidInputError where one is no address.
    """
    plain = tuple(text for text in nodes if len(text.split()) == 1)
    wishes = [NodeWish(host, port) for host, port in parse_addresses(plain)]
    for text in nodes:
        words = text.split()
        if len(words) != 1:
            try:
                wishes.append(_wish(words or [""], trust or Trust()))
            except ValueError as error:
                raise InvalidInputError(f"The node {text[:100]!r} is not valid: {error}.") from error
    return wishes


def wishes_of_text(text: str, trust: Trust | None = None) -> list[NodeWish]:
    """Return the nodes of a file: ``host[:port] [weight=2] [sockets=24] [kind=frames|http] [drain]`` a line.

    What `trust.trust_of` reads may follow too. Lines that are empty or begin with ``#`` say nothing. Raises
    InvalidInputError that names the line.
    """
    wishes = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            try:
                wishes.append(_wish(words, trust or Trust()))
            except (InvalidInputError, ValueError) as error:
                raise InvalidInputError(
                    f"Line {number} of the list of nodes is not valid: {error}",
                    remedy="Write HOST[:PORT], then weight=, sockets=, kind=frames|http or drain as needed, and "
                    f"{OPTION_WORDS} for TLS and tokens.",
                ) from error
    return wishes


def _wish(words: list[str], default: Trust) -> NodeWish:
    host, port = parse_address(words[0])
    weight, sockets, kind, draining = 1.0, None, None, False
    about_trust = []
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name == "weight":
            weight = float(value)
        elif name == "sockets":
            sockets = int(value)
        elif name == "kind":
            kind = Kind(value)
        elif word == "drain":
            draining = True
        else:
            about_trust.append(word)
    if not 0 < weight <= 1000:
        raise ValueError("a weight is above 0 and at most 1000")
    if sockets is not None and not 1 <= sockets <= 4096:
        raise ValueError("sockets are 1 to 4096")
    trust = trust_of(about_trust, default) if about_trust else None
    return NodeWish(host, port, weight, sockets, kind, draining, trust)


def read_nodes_file(path: Path, trust: Trust | None = None) -> list[NodeWish]:
    """Return the nodes that a file names; raise InvalidInputError where it cannot be read or is not valid."""
    try:
        found = path.stat()
        if found.st_size > MOST_FILE_BYTES:
            raise InvalidInputError(f"The list of nodes {path} is larger than {MOST_FILE_BYTES} bytes.")
        if not stat.S_ISREG(found.st_mode):
            # Reading a pipe or a device may take for ever.
            raise InvalidInputError(f"The list of nodes {path} is no file.")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInputError(
            f"The list of nodes {path} cannot be read: {reason}.",
            remedy="Correct --nodes-file, or make the file, and let the proxy's user read it.",
        ) from error
    return wishes_of_text(text, trust)


class NodesFile:
    """Follows a file; `run` goes on until cancelled.

    A change is taken once the file has stayed as it is from one look to the next: some editors write in pieces, and half
    a list would take half of the nodes out. A file without a byte is what an editor leaves on a full disk.
    """

    def __init__(self, path: Path, directory: Directory) -> None:
        self._path = path
        self._directory = directory
        self._stamp = self._seen = _stamp(path)
        directory.replace("file", read_nodes_file(path, directory.default_trust))

    async def run(self) -> None:
        """Take the file whenever it has changed."""
        while True:
            await asyncio.sleep(FILE_SECONDS)
            self.look()

    def look(self) -> None:
        """Take the file if it has changed; one that is gone, empty or not valid is told and changes nothing."""
        before, self._seen = self._seen, _stamp(self._path)
        if self._seen == self._stamp or self._seen != before:
            return
        self._stamp = self._seen
        try:
            wishes = read_nodes_file(self._path, self._directory.default_trust)
            if self._stamp is not None and self._stamp[1] == 0:
                raise InvalidInputError(
                    f"The list of nodes {self._path} is empty.",
                    remedy="Write it again; one that is to name no node holds a line that begins with #.",
                )
        except GpupoolError as error:
            log.warning("nodes_file_ignored", why=error.message, remedy=error.remedy)
            return
        self._directory.replace("file", wishes)
        log.info("nodes_file_taken", path=str(self._path), nodes=len(wishes))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def take_feed(view: "EndpointsView", directory: Directory) -> None:
    """Take the recompute servers that control knows; an address that is none is told and left out."""
    wishes = []
    for endpoint in view.endpoints:
        try:
            host, port = parse_address(endpoint.address)
        except InvalidInputError as error:
            log.warning("endpoint_ignored", endpoint=endpoint.id, why=error.message)
            continue
        # What control counts are requests worked on at once; a server queues some more itself.
        wishes.append(
            NodeWish(
                host,
                port,
                weight=endpoint.weight if endpoint.weight > 0 else 1.0,
                sockets=max(4, endpoint.concurrency * 4),
                kind=Kind.HTTP,
                draining=endpoint.state == "draining",
                speaks_tls=endpoint.tls,
            )
        )
    directory.replace("feed", wishes)
