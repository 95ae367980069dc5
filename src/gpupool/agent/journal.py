"""The agent's journal: what it must still know after a crash.

An order is written here before it is acknowledged, since control forgets it then. One small file, replaced in one
step; the numbers of the command sequence belong to one node id and start anew with another.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from gpupool.contracts.agent_link import StartOrder
from gpupool.core import failpoints
from gpupool.core.files import read_json, remove_unfinished, write_private_json


@dataclass(frozen=True, slots=True)
class Wanted:
    """A placement that control has ordered and has not yet been told the end of."""

    order: StartOrder
    stop_grace: float | None = None
    """Set once it was ordered to stop: seconds between the polite and the forced end."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Everything that is in the journal at one moment."""

    node_id: str | None = None
    last_seq: int = 0
    wanted: Mapping[str, Wanted] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the entries in ``value``, none where it holds no journal."""
        try:
            wanted = {
                name: Wanted(StartOrder.model_validate(entry["order"]), entry["stop_grace"])
                for name, entry in value["wanted"].items()
            }
            return cls(value["node_id"], int(value["last_seq"]), wanted)
        except (TypeError, KeyError, ValueError, AttributeError, ValidationError):
            return cls()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "node_id": self.node_id,
            "last_seq": self.last_seq,
            "wanted": {
                name: {"order": entry.order.model_dump(mode="json"), "stop_grace": entry.stop_grace}
                for name, entry in self.wanted.items()
            },
        }


class Journal:
    """The durable state of one agent.

    A change counts only once it is on disk: every method that changes something raises EnvironmentProblemError where
    it cannot be written, and then nothing has changed here either.
    """

    def __init__(self, path: Path, entries: Entries | None = None) -> None:
        self._path = path
        self._entries = entries or Entries()
        self._saving = asyncio.Lock()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the journal kept at ``path``, empty where there is none or it cannot be read."""
        remove_unfinished(path)
        return cls(path, Entries.from_json(read_json(path)))

    @property
    def node_id(self) -> str | None:
        """The id that control gave this node."""
        return self._entries.node_id

    @property
    def last_seq(self) -> int:
        """The highest command that is safe here."""
        return self._entries.last_seq

    @property
    def wanted(self) -> Mapping[str, Wanted]:
        """What control has ordered, by placement id; a snapshot."""
        return self._entries.wanted

    async def adopt_identity(self, node_id: str) -> bool:
        """Note the id that control gave this node; True when it differs from the one the orders came under."""
        if node_id == self.node_id:
            return False
        stranger = self.node_id is not None
        await self._change("identity", lambda now: replace(now, node_id=node_id, last_seq=0))
        return stranger

    async def start(self, seq: int, order: StartOrder) -> None:
        """Keep an order; one for a placement already here changes nothing but the sequence."""
        await self._change(
            "start", lambda now: _passed(now, seq, {order.placement_id: Wanted(order), **now.wanted})
        )

    async def stop(self, seq: int, placement_id: str, grace_seconds: float) -> None:
        """Keep the wish that a placement ends; an unknown one is no error."""

        def change(now: Entries) -> Entries:
            known = now.wanted.get(placement_id)
            ending = {placement_id: replace(known, stop_grace=grace_seconds)} if known else {}
            return _passed(now, seq, {**now.wanted, **ending})

        await self._change("stop", change)

    async def passed(self, seq: int) -> None:
        """Note a command that leaves nothing to keep."""
        await self._change("passed", lambda now: _passed(now, seq, now.wanted))

    async def drop(self, placement_ids: Collection[str]) -> None:
        """Forget placements whose end control knows."""
        if any(name in self.wanted for name in placement_ids):
            await self._change(
                "drop",
                lambda now: replace(
                    now,
                    wanted={name: kept for name, kept in now.wanted.items() if name not in placement_ids},
                ),
            )

    async def _change(self, what: str, change: Callable[[Entries], Entries]) -> None:
        async with self._saving:
            changed = change(self._entries)
            failpoints.reach(f"agent.journal.{what}.before")
            await asyncio.to_thread(write_private_json, self._path, changed.to_json())
            failpoints.reach(f"agent.journal.{what}.after")
            self._entries = changed


def _passed(now: Entries, seq: int, wanted: Mapping[str, Wanted]) -> Entries:
    return replace(now, last_seq=max(now.last_seq, seq), wanted=wanted)
