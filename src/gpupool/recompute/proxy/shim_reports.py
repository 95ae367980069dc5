"""What a stock harvester has lost, as the library in its process says with every request (native/README.md).

The stock prover swallows a lost quality: it goes on with a wrong one and writes no line. So only the library's own
counters know, and the sidecar is where somebody reads them. They grow for as long as a process lives; what is kept
here is how much they have grown, over processes and over restarts of the proxy.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final, Self

HEADER: Final = b"x-shim-failures"
LONGEST: Final = 300
"""Bytes of the header; more is no report."""
PROCESSES_KEPT: Final = 8
"""Harvester processes of one client whose counters are remembered."""
RECENT_SECONDS: Final = 60.0
"""Lost look-ups are told for so long after the last one."""
_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyz_")
_MOST: Final = 2**53


@dataclass(frozen=True, slots=True)
class ShimReport:
    """The counters of one process since its library was loaded."""

    qualities: int
    proofs: int
    """Look-ups that got no answer from anywhere."""
    fallbacks: int
    """Look-ups that the bundled library answered because the pool did not."""
    pid: int
    since: int
    """Unix time of the load; 0 where it is not told."""
    why: str = "none"
    """The last failure, in a word."""


def read_report(value: bytes) -> ShimReport | None:
    """Return what the header says; None where that is no report. Names that are not known are skipped."""
    if len(value) > LONGEST:
        return None
    words = [word.partition("=") for word in value.decode("latin-1").split()]
    given = {name: text for name, _, text in words}
    numbers = {name: given.get(name, "0") for name in ("qualities", "proofs", "fallbacks", "since")}
    numbers["pid"] = given.get("pid", "")
    if not all(text.isascii() and text.isdigit() and len(text) <= 12 for text in numbers.values()):
        return None
    why = given.get("why", "none")
    if not (0 < len(why) <= 20 and _WORD.issuperset(why)):
        return None
    return ShimReport(**{name: int(text) for name, text in numbers.items()}, why=why)


class ShimTally:
    """What one client's harvester processes have lost; numbers only grow."""

    __slots__ = (
        "_changed",
        "_last",
        "_processes",
        "_recent",
        "fallbacks",
        "ignored",
        "pid",
        "proofs",
        "qualities",
        "why",
    )

    def __init__(self) -> None:
        self.qualities = 0
        self.proofs = 0
        self.fallbacks = 0
        self.pid = 0
        """The process that was heard last."""
        self.why = "none"
        self.ignored = False
        """Something came that is no report."""
        self._processes: dict[tuple[int, int], ShimReport] = {}
        self._last = b""
        self._recent = 0
        self._changed: float | None = None

    def take(self, value: bytes, now: float) -> ShimReport | None:
        """Take a header's value; return how much has been lost since the last one, None where it is no report."""
        if value == self._last:
            return _NOTHING
        report = read_report(value)
        if report is None:
            return None
        self._last = value
        key = report.pid, report.since
        before = self._processes.pop(key, _NOTHING)
        # Requests of several connections may overtake each other, so a smaller number is no news.
        grown = ShimReport(
            max(0, report.qualities - before.qualities),
            max(0, report.proofs - before.proofs),
            max(0, report.fallbacks - before.fallbacks),
            report.pid,
            report.since,
            report.why,
        )
        self._processes[key] = ShimReport(
            before.qualities + grown.qualities,
            before.proofs + grown.proofs,
            before.fallbacks + grown.fallbacks,
            *key,
        )
        if len(self._processes) > PROCESSES_KEPT:
            del self._processes[next(iter(self._processes))]
        self._add(grown, now)
        return grown

    def _add(self, grown: ShimReport, now: float) -> None:
        self.qualities += grown.qualities
        self.proofs += grown.proofs
        self.fallbacks += grown.fallbacks
        self.pid, self.why = grown.pid, grown.why
        lost = grown.qualities + grown.proofs
        if lost:
            self._recent = lost + (self._recent if self._is_recent(now) else 0)
            self._changed = now

    def _is_recent(self, now: float) -> bool:
        return self._changed is not None and now - self._changed <= RECENT_SECONDS

    def trouble(self, now: float) -> str:
        """Return what was lost lately, in words; empty where nothing was."""
        if not self._is_recent(now):
            return ""
        return (
            f"{self._recent} look-ups got no answer at all (pid {self.pid}, last: {self.why}); the harvester itself"
            " does not notice a lost quality"
        )

    def row(self) -> dict[str, Any]:
        """Return the numbers for a list of clients."""
        return {
            "qualities": self.qualities,
            "proofs": self.proofs,
            "fallbacks": self.fallbacks,
            "pid": self.pid,
            "why": self.why,
        }

    def kept(self) -> dict[str, Any]:
        """Return what is to outlive this process."""
        return self.row() | {"processes": [asdict(report) for report in self._processes.values()]}

    @classmethod
    def of_kept(cls, value: Any) -> Self:
        """Return what `kept` gave; raise ValueError, TypeError or KeyError where it is none."""
        tally = cls()
        for name in ("qualities", "proofs", "fallbacks", "pid"):
            setattr(tally, name, _number(value[name]))
        for fields in value["processes"][:PROCESSES_KEPT]:
            numbers = ("qualities", "proofs", "fallbacks", "pid", "since")
            qualities, proofs, fallbacks, pid, since = (_number(fields[name]) for name in numbers)
            report = ShimReport(qualities, proofs, fallbacks, pid, since)
            tally._processes[report.pid, report.since] = report
        return tally

    def follow(self, earlier: Self) -> None:
        """Add what an earlier process of the proxy knew; called before anything is heard, or soon after."""
        self.qualities += earlier.qualities
        self.proofs += earlier.proofs
        self.fallbacks += earlier.fallbacks
        self._processes = earlier._processes | self._processes


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r} is no count")
    return value


_NOTHING: Final = ShimReport(0, 0, 0, 0, 0)
