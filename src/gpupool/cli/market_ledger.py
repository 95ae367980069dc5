"""The market's ledger in sums: by day, server, GPU model, chute or miner."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from gpupool.contracts.market import LedgerLine


class By(StrEnum):
    """What earnings are summed by."""

    DAY = "day"
    SERVER = "server"
    MODEL = "model"
    CHUTE = "chute"
    MINER = "miner"


@dataclass(slots=True)
class Sum:
    """What was earned under one name."""

    name: str
    gpu_hours: float = 0.0
    units: float = 0.0
    """Compute units; bounties are counted apart."""
    compute_usd: float = 0.0
    bounty_usd: float = 0.0

    @property
    def usd(self) -> float:
        """Everything."""
        return self.compute_usd + self.bounty_usd

    def plain(self) -> dict[str, str | float]:
        """Return it for JSON and CSV."""
        return {
            "name": self.name,
            "gpu_hours": round(self.gpu_hours, 4),
            "units": round(self.units, 4),
            "compute_usd": round(self.compute_usd, 6),
            "bounty_usd": round(self.bounty_usd, 6),
            "usd": round(self.usd, 6),
        }


_COLUMNS: Final = tuple(Sum("").plain())


def sums(lines: Sequence[LedgerLine], by: By, chutes: Mapping[str, str]) -> list[Sum]:
    """Return the sums, days in order and everything else by what it earned; ``chutes``: names by id."""
    name_of: dict[By, Callable[[LedgerLine], str]] = {
        By.DAY: lambda line: datetime.fromtimestamp(line.at, UTC).date().isoformat(),
        By.SERVER: lambda line: line.server_id or "gone",
        By.MODEL: lambda line: line.short_ref or "gone",
        By.CHUTE: lambda line: chutes.get(line.chute_id, line.chute_id),
        By.MINER: lambda line: line.hotkey,
    }
    found: dict[str, Sum] = {}
    for line in lines:
        name = name_of[by](line)
        entry = found.setdefault(name, Sum(name))
        entry.gpu_hours += line.seconds * line.gpus / 3600
        if line.kind == "bounty":
            entry.bounty_usd += line.usd
        else:
            entry.units += line.units
            entry.compute_usd += line.usd
    if by is By.DAY:
        return sorted(found.values(), key=lambda entry: entry.name)
    return sorted(found.values(), key=lambda entry: (-entry.usd, entry.name))


def as_csv(entries: Sequence[Sum]) -> str:
    """Return the sums as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(entry.plain() for entry in entries)
    return text.getvalue()


def total(entries: Sequence[Sum]) -> Sum:
    """Return the sum of sums."""
    whole: defaultdict[str, float] = defaultdict(float)
    for entry in entries:
        whole["gpu_hours"] += entry.gpu_hours
        whole["units"] += entry.units
        whole["compute_usd"] += entry.compute_usd
        whole["bounty_usd"] += entry.bounty_usd
    return Sum("total", **whole)
