"""Who is next: fair between clients, the earliest deadline first within one. Pure.

Fairness stands outside. Harvesters of one farm wait equally long, so deadlines across clients say little of who is in
need, and with deadlines alone whoever asks for the shortest ones gets the whole server. Each client has a share, the
seconds of computing it was given; the one with the smallest share is next. Clients within `SLACK` seconds of it count
as equal, and there the earliest deadline decides, so that one request does not pay with its deadline for another
client's few milliseconds. What a client never used is not saved up for it.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

SLACK: Final = 1.0
"""Seconds of computing by which shares may differ before deadlines stop counting."""
LEAST_COST: Final = 0.001
"""Seconds; nothing is free, or one client could be served for ever."""


class Waiting(Protocol):
    """What stands in the line."""

    @property
    def client(self) -> str:
        """Who asks."""
        ...

    @property
    def cost(self) -> float:
        """Expected seconds of computing."""
        ...

    @property
    def rank(self) -> tuple[float, int]:
        """Deadline, then order of arrival; changes only by `Line.reorder`."""
        ...


T = TypeVar("T", bound=Waiting)


@dataclass(slots=True)
class _Client(Generic[T]):
    share: float
    jobs: list[T] = field(default_factory=list)
    """By rank."""


class Line(Generic[T]):
    """Everything that waits."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}
        self._first: list[T] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, job: T) -> None:
        """Let a job wait."""
        client = self._clients.get(job.client)
        if client is None:
            shares = [other.share for other in self._clients.values() if other.jobs]
            client = self._clients[job.client] = _Client(min(shares, default=0.0))
        elif not client.jobs:
            shares = [other.share for other in self._clients.values() if other.jobs]
            client.share = max(client.share, min(shares, default=client.share))
        insort(client.jobs, job, key=lambda waiting: waiting.rank)
        self._size += 1

    def add_first(self, job: T) -> None:
        """Let a job that had been served wait before all others; its client has paid for it."""
        self._first.insert(0, job)
        self._size += 1

    def remove(self, job: T) -> bool:
        """Take a job out; False where it does not wait."""
        client = self._clients.get(job.client)
        for jobs in (self._first, [] if client is None else client.jobs):
            if job in jobs:
                jobs.remove(job)
                self._size -= 1
                self._forget()
                return True
        return False

    def serve(self, job: T) -> None:
        """Take a job out and charge its client."""
        client = self._clients.get(job.client)
        if client is not None and job in client.jobs:
            client.share += max(job.cost, LEAST_COST)
        self.remove(job)

    def reorder(self, job: T) -> None:
        """Put a waiting job where its rank, which was changed, belongs."""
        client = self._clients.get(job.client)
        if client is not None and job in client.jobs:
            client.jobs.sort(key=lambda waiting: waiting.rank)

    def order(self) -> Iterator[T]:
        """Return all jobs in the order in which they would be served now; the line must not change meanwhile."""
        yield from self._first
        shares = {name: client.share for name, client in self._clients.items() if client.jobs}
        position = dict.fromkeys(shares, 0)
        while shares:
            limit = min(shares.values()) + SLACK
            name = min(
                (name for name, share in shares.items() if share <= limit),
                key=lambda name: self._clients[name].jobs[position[name]].rank,
            )
            job = self._clients[name].jobs[position[name]]
            yield job
            shares[name] += max(job.cost, LEAST_COST)
            position[name] += 1
            if position[name] == len(self._clients[name].jobs):
                del shares[name]

    def victim(self, client: str) -> T | None:
        """Return the job that gives way to one of ``client`` where the line is full, or None.

        It is the last one of whoever has most jobs waiting, if that is at least two more than ``client`` has.
        """
        mine = len(self._clients[client].jobs) if client in self._clients else 0
        greediest = max(self._clients.values(), key=lambda other: len(other.jobs), default=None)
        if greediest is None or len(greediest.jobs) < mine + 2:
            return None
        return greediest.jobs[-1]

    def _forget(self) -> None:
        """Keep no account of who wants nothing and is owed nothing."""
        least = min((client.share for client in self._clients.values() if client.jobs), default=None)
        for name, client in list(self._clients.items()):
            if not client.jobs and (least is None or client.share <= least):
                del self._clients[name]
