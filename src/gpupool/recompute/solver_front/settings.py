"""What a solver front can be told."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.proxy.trust import Trust

PORT: Final = 8666
ADMIN_PORT: Final = 8668
RELEASE: Final = "0.48.0"
"""Of chia_rs, as Chia 2.7.5 has it."""
LIMIT_SECONDS: Final = 25.0
"""For a question; a farmer can use an answer for 28 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    """Settings of one front."""

    host: str = "127.0.0.1"
    port: int = PORT
    admin_port: int = ADMIN_PORT
    nodes: tuple[str, ...] = ()
    nodes_file: Path | None = None
    control_url: str | None = None
    control_token_file: Path | None = None
    trust: Trust = field(default_factory=Trust)
    allow: tuple[str, ...] = ()
    allow_file: Path | None = None
    allow_local: bool = True
    network: str = "mainnet"
    release: str = RELEASE
    limit_seconds: float = LIMIT_SECONDS
    drain_seconds: float = LIMIT_SECONDS
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        """Raise InvalidInputError where something does not go together."""
        if not (self.nodes or self.nodes_file or self.control_url):
            raise InvalidInputError(
                "The solver front has no workers.",
                remedy="Name recompute servers with -n HOST[:PORT], --nodes-file, or --control.",
            )
        if not 1 <= self.limit_seconds <= 28:
            raise InvalidInputError(
                f"A farmer can use an answer for 28 s; --deadline {self.limit_seconds:g} is not between 1 and that."
            )
        if not 0 <= self.drain_seconds <= 3600:
            raise InvalidInputError(f"--drain {self.drain_seconds:g} is not between 0 and 3600 s.")
