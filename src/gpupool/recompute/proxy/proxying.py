"""The parts of one proxy put together: nodes, a dispatcher for each protocol, the clients, and the clock that ticks.

Nothing here opens a socket, so that tests can put a whole proxy on any listener.
"""

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Final

import structlog

from gpupool.recompute.proxy.asking_rate import AskingRate
from gpupool.recompute.proxy.border import Border
from gpupool.recompute.proxy.clients import Client, Doorman
from gpupool.recompute.proxy.dispatching import Dispatcher
from gpupool.recompute.proxy.frame_clients import FrameClient
from gpupool.recompute.proxy.heirs import Heir
from gpupool.recompute.proxy.http_clients import HttpClient
from gpupool.recompute.proxy.local import LocalPages
from gpupool.recompute.proxy.nodes import Directory, Kind
from gpupool.recompute.proxy.places import who_leaves
from gpupool.recompute.proxy.requestlog import RequestLog
from gpupool.recompute.proxy.settings import ProxySettings
from gpupool.recompute.proxy.tallies import Tallies
from gpupool.recompute.proxy.trust import Keyring
from gpupool.recompute.proxy.verdicts import Judge

TICK_SECONDS: Final = 0.025
_CLIENTS_EVERY: Final = 40
"""Ticks between two looks at the clients' clocks."""
log = structlog.get_logger(__name__)


class ProxyCore:
    """One proxy."""

    def __init__(
        self,
        settings: ProxySettings,
        instance_id: str,
        *,
        request_log: RequestLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.instance_id = instance_id
        self.instance_name = instance_id.encode()
        """The same as it stands in headers."""
        self.clock = clock
        self.began = clock()
        self.clients: set[Client] = set()
        self.rate = None if settings.client_rate is None else AskingRate(settings.client_rate)
        self.draining = False
        self.heir: Heir | None = None
        """Who takes the clients over when this proxy stops."""
        self.turned_away_count = self.clients_left_count = 0
        self.inheriting = False
        """Another proxy may still send clients."""
        self.control_trouble: Callable[[], str | None] = lambda: None
        """Why the feed of control cannot be followed; None where it is, or none is named."""
        self._quiet = asyncio.Event()
        self.border = Border(settings.border, clock)
        self.keyring = Keyring(clock)
        self.keyring.check(settings.trust)
        self.directory = Directory()
        self.directory.default_trust = settings.trust
        self.request_log = request_log or RequestLog(enabled=False)
        self._tallies = self.request_log.count_into(Tallies(settings.silent_seconds), clock)
        self.judge = Judge(clock, enabled=settings.check_answers)
        self.frames = self._dispatcher(Kind.FRAMES, settings.sockets)
        self.http = self._dispatcher(Kind.HTTP, settings.http_sockets)
        self.directory.changed = self.nodes_changed
        self.local = LocalPages(self)
        self._numbers = count(1)
        self._id_stem = f"req-{instance_id[-8:]}"

    def _dispatcher(self, kind: Kind, sockets: int) -> Dispatcher:
        return Dispatcher(
            kind,
            self.directory,
            sockets,
            self.request_log,
            self.clock,
            keyring=self.keyring,
            judge=self.judge if kind is Kind.HTTP and self.settings.check_answers else None,
        )

    @property
    def dispatchers(self) -> tuple[Dispatcher, Dispatcher]:
        """Both of them."""
        return self.frames, self.http

    @property
    def tallies(self) -> Tallies:
        """What was counted, with all that has ended."""
        self.request_log.settle()
        return self._tallies

    def nodes_changed(self) -> None:
        """Take the directory as it is now."""
        for dispatcher in self.dispatchers:
            dispatcher.set_nodes()

    def next_id(self) -> str:
        """Return a request id that this process has not given yet."""
        return f"{self._id_stem}-{next(self._numbers):x}"

    def client(self) -> Client:
        """Return the protocol of a new connection."""
        return Doorman(self)

    def frame_client(self) -> Client:
        """Return the protocol of a connection that speaks frames."""
        return FrameClient(self)

    def http_client(self) -> Client:
        """Return the protocol of a connection that speaks HTTP."""
        return HttpClient(self).begin()

    def has_place(self) -> bool:
        """Tell whether one more client may come in; where all places are taken, clients at rest leave for it."""
        if len(self.clients) < self.settings.connections:
            return True
        leaving = who_leaves(self.clients)
        for client in leaving:
            self.clients.discard(client)
            client.abort()
        if leaving:
            self._made_room(len(leaving))
        return bool(leaving)

    def _made_room(self, count: int) -> None:
        if self.clients_left_count % 1000 < count:
            log.warning(
                "clients_made_room",
                connections=self.settings.connections,
                remedy="Connections without a request were closed for new ones. Raise --connections, and look at"
                " `gpupool recompute clients` for who has so many.",
            )
        self.clients_left_count += count

    def turned_away(self) -> None:
        """Count a client for which there was no place; told once per thousand."""
        if self.turned_away_count % 1000 == 0:
            log.warning(
                "client_turned_away",
                connections=self.settings.connections,
                remedy="Raise --connections, or run a second proxy and name both in the harvesters' list.",
            )
        self.turned_away_count += 1

    async def tick(self) -> None:
        """Watch the clocks until cancelled."""
        for number in count(1):
            await asyncio.sleep(TICK_SECONDS)
            now = self.clock()
            for dispatcher in self.dispatchers:
                dispatcher.sweep(now)
            self.request_log.flush()
            if self.draining:
                self._part()
            if number % _CLIENTS_EVERY == 0:
                self.sweep_clients(now)

    def sweep_clients(self, now: float) -> None:
        """End connections that take too long over a request, or ask nothing for too long."""
        for client in [client for client in self.clients if client.overdue(now)]:
            client.abort()

    async def drain(self, seconds: float) -> bool:
        """Finish what is under way or arriving, ``seconds`` at most; return whether all was.

        Clients go to the `heir` if there is one, each as soon as it has its answer.
        """
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
        except TimeoutError:
            return False
        finally:
            self._quiet.clear()
        return True

    def resume(self) -> None:
        """Serve on after all: the heir is gone."""
        self.draining, self.heir = False, None

    def _part(self) -> None:
        for client in list(self.clients):
            client.leave()
        if not self.inheriting and all(client.transport.is_closing() for client in self.clients):
            self._quiet.set()

    @property
    def parting(self) -> bool:
        """Whether a client's connection ends with its present answer."""
        return self.draining and self.heir is None

    def close(self) -> None:
        """End every connection."""
        for dispatcher in self.dispatchers:
            for exchange in list(dispatcher.active):
                dispatcher.cancel(exchange)
        for client in list(self.clients):
            client.close()
        for node in self.directory.nodes.values():
            for link in list(node.open):
                link.close()
        self.request_log.flush()
