"""Certificates and tokens that are renewed while a server or proxy runs: new files count without a restart.

Files are looked at when they are needed, so nothing runs in between, and at most once a second. While a certificate and
its key are being written they do not belong together for a moment; the pair before serves on until they do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from gpupool.core.errors import GpupoolError

LOOK_SECONDS: Final = 1.0
"""Between two looks at a file that may have changed."""
_T = TypeVar("_T")
log = structlog.get_logger(__name__)


class Renewed(Generic[_T]):
    """Something made of files; made anew, without a break, once they have changed."""

    def __init__(self, paths: tuple[Path, ...], make: Callable[[], _T], clock: Callable[[], float]) -> None:
        """Make it; raises what ``make`` raises."""
        self._paths, self._make, self._clock = paths, make, clock
        self._stamps = self._look()
        self._looked = clock()
        self._made = make()

    def get(self) -> _T:
        """Return the newest that could be made; files that are of no use are told once and change nothing."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return self._made
        self._looked = now
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._made = self._make()
                log.info("files_renewed", files=[str(path) for path in self._paths])
            except GpupoolError as error:
                log.warning("renewal_refused", why=error.message, remedy=error.remedy)
        return self._made

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
