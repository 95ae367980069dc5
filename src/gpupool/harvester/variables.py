"""What the library in the harvester's process is told: four variables, as native/README.md defines them."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gpupool.core.errors import InvalidInputError

SIDECAR: Final = "GPUPOOL_HARVESTER_SIDECAR"
TIMEOUT: Final = "GPUPOOL_HARVESTER_TIMEOUT_MS"
FALLBACK: Final = "GPUPOOL_HARVESTER_FALLBACK"
LOG: Final = "GPUPOOL_HARVESTER_LOG"
PRELOAD: Final = "LD_PRELOAD"
DEFAULT_TIMEOUT_MS: Final = 15_000
LONGEST_SOCKET: Final = 107
"""Bytes of a path that fit into the address of a Unix socket."""


class Fallback(StrEnum):
    """When the decompressor that chiapos brings along does the work on the harvester itself."""

    OFF = "off"
    AWAY = "away"
    """When the pool gives no answer."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimSettings:
    """The settings of the library in one harvester's process."""

    socket: Path
    """Where the sidecar listens."""
    log: Path | None = None
    """Where failures are written."""
    fallback: Fallback = Fallback.AWAY
    timeout_ms: int = DEFAULT_TIMEOUT_MS

    def __post_init__(self) -> None:
        """Raise InvalidInputError where the library could not use a value."""
        if not self.socket.is_absolute() or len(os.fsencode(self.socket)) > LONGEST_SOCKET:
            raise InvalidInputError(
                f"The socket {self.socket} cannot be used: its path must be absolute and at most {LONGEST_SOCKET}"
                " bytes long.",
                remedy="Name a shorter one with --socket, such as /run/user/1000/gpupool.sock.",
            )
        if not 100 <= self.timeout_ms <= 19_000:
            raise InvalidInputError(
                f"The time limit is {self.timeout_ms} ms; it must be 100 to 19000, under Chia's own 20 s."
            )
        for path in (self.socket, self.log):
            if path is not None and not str(path).isprintable():
                raise InvalidInputError(f"The path {str(path)!r} has characters that cannot be passed on.")

    def variables(self) -> dict[str, str]:
        """Return the variables by name."""
        found = {
            SIDECAR: f"unix:{self.socket}",
            FALLBACK: self.fallback.value,
            TIMEOUT: str(self.timeout_ms),
        }
        return found | ({LOG: str(self.log)} if self.log is not None else {})
