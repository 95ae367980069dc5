"""Which farmers may have partial proofs completed: node ids, given or in a file that is followed, and this machine."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.credentials import is_loopback

_NODE_ID: Final = re.compile(r"(0x)?(?P<digits>[0-9a-fA-F]{64})")
_FILE_LIMIT: Final = 1024 * 1024
log = structlog.get_logger(__name__)


def node_id(text: str) -> str:
    """Return a node id in its one form: 64 small hexadecimal digits; raises InvalidInputError."""
    found = _NODE_ID.fullmatch(text.strip())
    if found is None:
        raise InvalidInputError(
            f"{text.strip()[:80]!r} is no node id.",
            remedy="A node id has 64 hexadecimal digits; the front's log names that of each farmer it refuses.",
        )
    return found["digits"].lower()


class AllowList:
    """The farmers that may come in."""

    def __init__(self, given: Iterable[str], file: Path | None, *, local: bool) -> None:
        """``local``: whoever connects from this machine may. Raises InvalidInputError for what is no node id."""
        self._given = frozenset(map(node_id, given))
        self._file, self._local = file, local
        self._stamp: tuple[int, int] | None = None
        self._listed: frozenset[str] = frozenset()
        if file is not None:
            self._listed = _read(file)
            self._stamp = _stamp(file)

    def __contains__(self, node: str) -> bool:
        return node in self._given or node in self._listed

    def admits(self, node: str, host: str) -> bool:
        """Tell whether a farmer may come in from ``host``, by what the file says now."""
        self._look()
        return node in self or (self._local and is_loopback(host))

    def __len__(self) -> int:
        return len(self._given | self._listed)

    def _look(self) -> None:
        """Take the file if it has changed; one that is gone or not valid is told and changes nothing."""
        if self._file is None or (stamp := _stamp(self._file)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._listed = _read(self._file)
        except InvalidInputError as error:
            log.warning("allow_file_ignored", why=error.message, remedy=error.remedy)
            return
        log.info("allow_file_taken", path=str(self._file), farmers=len(self._listed))


def _read(path: Path) -> frozenset[str]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_FILE_LIMIT)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInputError(
            f"The list of farmers {path} cannot be read: {reason}.",
            remedy="Correct --allow-file, or make the file with a node id a line.",
        ) from error
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return frozenset(node_id(words[0]) for words in lines if words)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
