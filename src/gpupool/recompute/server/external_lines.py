"""What the operator's own Gigahorse server tells in its log: its devices, and each request with its time.

Its protocol is closed, its lines are plain text. They are read as they come and summed up level by level, so that a
card that grows slower is seen before it fails.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Protocol

_REQUEST: Final = re.compile(
    r"(?:\[\d+\] )?Request from (?P<client>\S+) for K(?P<k>\d{1,3}) C(?P<level>\d{1,3})"
    r" took (?P<ms>\d{1,12}(?:\.\d{1,9})?) ms(?P<more>.*)"
)
_DEVICE: Final = re.compile(r"Using (?P<name>.+?) \((?P<engine>.+)\)")
_COUNT: Final = re.compile(r"Using -?\d+ / \d+ .*")
_LISTENING: Final = re.compile(r"ReComputeServer listening on (?P<host>\S+) port (?P<port>\d+)")
_FAILED: Final = re.compile(r"is_fail = [1-9]")
_CARD: Final = re.compile(r"used_gpu = [1-9]")
_LONGEST_LINE: Final = 4096
_WEIGHT: Final = 0.1


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request that the server has answered."""

    client: str
    k: int
    level: int
    ms: float
    failed: bool
    on_card: bool


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One device that the server uses."""

    name: str
    engine: str


@dataclass(frozen=True, slots=True)
class ListeningLine:
    """The server can be reached."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TroubleLine:
    """Something failed, in the server's own words."""

    text: str


Line = RequestLine | DeviceLine | ListeningLine | TroubleLine


def read_line(text: str) -> Line | None:
    """Return what a line says, or None where it says nothing that is known."""
    request = _REQUEST.fullmatch(text)
    if request:
        more = request["more"]
        return RequestLine(
            client=request["client"],
            k=int(request["k"]),
            level=int(request["level"]),
            ms=float(request["ms"]),
            failed=bool(_FAILED.search(more)),
            on_card=bool(_CARD.search(more)),
        )
    listening = _LISTENING.fullmatch(text)
    if listening:
        return ListeningLine(listening["host"], int(listening["port"][:5]))
    device = _DEVICE.fullmatch(text)
    if device and not _COUNT.fullmatch(text):
        return DeviceLine(device["name"], device["engine"])
    return TroubleLine(text) if "failed with:" in text else None


@dataclass(slots=True)
class Tally:
    """What a server has done since it was first started."""

    devices: list[DeviceLine] = field(default_factory=list)
    listening: ListeningLine | None = None
    requests: int = 0
    failed: int = 0
    on_card: int = 0
    troubles: int = 0
    mean_ms: dict[int, float] = field(default_factory=dict)
    """By level; recent requests weigh more."""

    def note(self, line: Line | None) -> None:
        """Take in one line."""
        if isinstance(line, RequestLine):
            self.requests += 1
            self.failed += line.failed
            self.on_card += line.on_card
            mean = self.mean_ms.get(line.level, line.ms)
            self.mean_ms[line.level] = mean + _WEIGHT * (line.ms - mean)
        elif isinstance(line, DeviceLine):
            self.devices.append(line)
        elif isinstance(line, ListeningLine):
            self.listening = line
        elif isinstance(line, TroubleLine):
            self.troubles += 1

    def restarted(self) -> None:
        """Forget what a new process tells anew."""
        self.devices.clear()
        self.listening = None

    def summary(self) -> dict[str, object]:
        """Return the numbers for a log line."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "on_card": self.on_card,
            "troubles": self.troubles,
            "mean_ms": {f"C{level}": round(ms, 1) for level, ms in sorted(self.mean_ms.items())},
            "devices": [f"{device.name} ({device.engine})" for device in self.devices],
        }


class Readable(Protocol):
    """Where bytes come from."""

    async def read(self, n: int = -1) -> bytes:
        """Return up to ``n`` bytes; none at the end."""
        ...


async def lines_of(stream: Readable) -> AsyncIterator[str]:
    """Yield the lines of a stream without their ends; what is longer than a line can be is cut."""
    rest = b""
    while chunk := await stream.read(1 << 16):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[:_LONGEST_LINE]
        for line in whole:
            yield line[:_LONGEST_LINE].decode(errors="replace").rstrip("\r")
    if rest:
        yield rest.decode(errors="replace").rstrip("\r")
