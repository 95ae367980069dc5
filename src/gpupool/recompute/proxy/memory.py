"""Keeps the tallies of clients and nodes over a restart, in one file that is either the old one or the new one.

Written every five minutes and at an orderly stop, so a crash loses five minutes of history and no lookup. The copy is
taken between two requests; packing and writing happen on a thread. A file that cannot be read is put aside.
"""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import structlog

from gpupool.core.errors import GpupoolError
from gpupool.core.files import read_json, remove_unfinished, write_private
from gpupool.recompute.proxy.history import from_text, to_text
from gpupool.recompute.proxy.shim_reports import ShimTally
from gpupool.recompute.proxy.tallies import CLIENTS_KEPT, NODES_KEPT, ClientTally, Tallies, Tally

FILE: Final = "history.json"
_VERSION: Final = 1
_CLIENT_FIELDS: Final = (
    "first",
    "requests",
    "failed",
    "frames",
    "http",
    "left",
    "refused",
    "minutes",
    "pause",
)
_NODE_FIELDS: Final = ("requests", "failed")
_LONGEST_NAME: Final = 300
log = structlog.get_logger(__name__)
_Row = tuple[dict[str, Any], tuple[bytes, bytes]]


def load(path: Path, tallies: Tallies) -> None:
    """Add what an earlier process kept to ``tallies``; a file that is none is put aside and told."""
    remove_unfinished(path)
    if not path.exists():
        return
    earlier = Tallies(tallies.silent_floor)
    try:
        kept = _kept(path)
        for name, fields in _rows(kept, "clients", CLIENTS_KEPT):
            client = earlier.client(name)
            _fill(client, fields, _CLIENT_FIELDS)
            client.seen = float(fields["seen"])
            if fields.get("shim") is not None:
                client.shim = ShimTally.of_kept(fields["shim"])
        for name, fields in _rows(kept, "nodes", NODES_KEPT):
            _fill(earlier.node(name), fields, _NODE_FIELDS)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError) as error:
        log.warning("history_put_aside", path=str(path), why=str(error))
        path.replace(path.with_suffix(".unreadable"))
        return
    tallies.follow(earlier)


def _kept(path: Path) -> dict[str, Any]:
    kept = read_json(path)
    if not isinstance(kept, dict) or kept.get("version") != _VERSION:
        raise ValueError("it is no history of this version")
    return kept


def _rows(kept: dict[str, Any], what: str, most: int) -> list[tuple[str, dict[str, Any]]]:
    rows = list(kept[what].items())[:most]
    if any(len(name) > _LONGEST_NAME or not isinstance(fields, dict) for name, fields in rows):
        raise ValueError(f"its {what} are not valid")
    return rows


def _fill(tally: Tally, fields: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        kind = type(getattr(tally, name))
        value = kind(fields[name])
        if not 0 <= value < float(2**63):
            raise ValueError(f"{name} is {value}")
        setattr(tally, name, value)
    tally.history.minutes.unpack(from_text(fields["minutes_history"]))
    tally.history.hours.unpack(from_text(fields["hours_history"]))


class Memory:
    """Writes the tallies to their file."""

    def __init__(self, path: Path, tallies: Tallies) -> None:
        self._path = path
        self._tallies = tallies
        self._writing = asyncio.Lock()

    async def save(self, wall: float, now: float) -> None:
        """Write the present state; a disk that refuses is told and changes nothing else."""
        clients = {
            name: _row(tally, _CLIENT_FIELDS, seen=seen_at(tally, wall, now), shim=_shim(tally))
            for name, tally in self._tallies.clients.items()
        }
        nodes = {name: _row(tally, _NODE_FIELDS) for name, tally in self._tallies.nodes.items()}
        async with self._writing:
            try:
                await asyncio.to_thread(self._write, clients, nodes)
            except GpupoolError as error:
                log.warning("history_not_kept", why=error.message, remedy=error.remedy)

    def _write(self, clients: dict[str, _Row], nodes: dict[str, _Row]) -> None:
        kept = {"version": _VERSION, "clients": _packed(clients), "nodes": _packed(nodes)}
        write_private(self._path, json.dumps(kept) + "\n")


def seen_at(tally: ClientTally, wall: float, now: float) -> float:
    """Return the wall time at which a client last asked."""
    return wall - (now - tally.last) if tally.last else tally.seen


def _shim(tally: ClientTally) -> dict[str, Any] | None:
    return None if tally.shim is None else tally.shim.kept()


def _row(tally: Tally, names: tuple[str, ...], **more: Any) -> _Row:
    return {name: getattr(tally, name) for name in names} | more, tally.history.packed()


def _packed(rows: dict[str, _Row]) -> dict[str, dict[str, Any]]:
    return {
        name: fields | {"minutes_history": to_text(minutes), "hours_history": to_text(hours)}
        for name, (fields, (minutes, hours)) in rows.items()
    }
