"""What a check returns: a verdict with what was measured, and where it is not good, why and what to do."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How it stands."""

    GOOD = "pass"
    WARN = "warn"
    """It works, and will not for long, or not as well as it could."""
    FAIL = "fail"
    """Something does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    name: str
    verdict: Verdict
    measured: str
    why: str | None = None
    remedy: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """Return the facts for ``--json``."""
        return asdict(self)


def passed(name: str, measured: str) -> Finding:
    """Return a good finding."""
    return Finding(name=name, verdict=Verdict.GOOD, measured=measured)


def warned(name: str, measured: str, why: str, remedy: str) -> Finding:
    """Return a finding that someone should look at in time."""
    return Finding(name=name, verdict=Verdict.WARN, measured=measured, why=why, remedy=remedy)


def failed(name: str, measured: str, why: str, remedy: str) -> Finding:
    """Return a finding of something that does not work."""
    return Finding(name=name, verdict=Verdict.FAIL, measured=measured, why=why, remedy=remedy)


def mib(count: int) -> str:
    """Return bytes for a reader: ``812 MiB``, ``1.2 GiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
