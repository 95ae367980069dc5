"""The front as a whole: who comes in, what becomes of each partial proof, and the pages for its operator."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

import structlog
from aiohttp import web

from gpupool import __version__
from gpupool.balancing import Outcome, Pool
from gpupool.core.errors import GpupoolError
from gpupool.core.ids import new_id
from gpupool.recompute.proxy.nodes import Directory
from gpupool.recompute.proxy.trust import Keyring
from gpupool.recompute.solver_front.allowing import AllowList
from gpupool.recompute.solver_front.attempts import Asked, AttemptError, ask_worker
from gpupool.recompute.solver_front.checking import Checker
from gpupool.recompute.solver_front.counters import Counters
from gpupool.recompute.solver_front.dispatching import POLICY, Course, Dispatcher
from gpupool.recompute.solver_front.farmers import HEARTBEAT_SECONDS, MOST_QUESTIONS, Farmer, Farmers
from gpupool.recompute.solver_front.identity import Identity, node_id_of
from gpupool.recompute.solver_front.settings import FrontSettings
from gpupool.recompute.solver_front.solutions import Solutions
from gpupool.recompute.solver_front.wire import MESSAGE_LIMIT, Message, Solution, Solve
from gpupool.recompute.solver_front.workers import Workers
from gpupool.solvers.questions import SolveQuestion

log = structlog.get_logger(__name__)
_TELL_SECONDS: Final = 60.0
"""Between two log lines on one farmer that is not let in; it tries again and again."""


class Front:
    """One front: its farmers on one side, its workers on the other."""

    def __init__(
        self,
        settings: FrontSettings,
        identity: Identity,
        port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``port`` is the one it listens on. Raises InvalidInputError for a list of farmers that is none."""
        self.settings, self.identity, self.port = settings, identity, port
        self.instance_id = new_id("inst")
        self._clock = clock
        self.allow = AllowList(settings.allow, settings.allow_file, local=settings.allow_local)
        self.checker = Checker(settings.release)
        self.farmers = Farmers(settings.network, port, clock)
        self.directory = Directory()
        self.directory.default_trust = settings.trust
        pool = Pool(POLICY)
        self.workers = Workers(self.directory, pool, Keyring(clock), settings.release, clock)
        self.counters = Counters(
            {
                "farmers": ("Farmers that are connected.", lambda: len(self.farmers.connected)),
                "workers": ("Workers that answer.", lambda: len(self.workers.serving())),
                "workers_unusable": (
                    "Workers that cannot solve for these farmers.",
                    lambda: len(self.workers.unable()),
                ),
                "running": ("Partial proofs that are worked on.", lambda: self.solutions.under_way),
            }
        )
        self.dispatcher = Dispatcher(
            pool, self._ask, clock, told_seconds=self.workers.told_seconds, counted=self.counters.tried
        )
        self.solutions = Solutions(self.dispatcher.solve, clock, settings.limit_seconds)
        self._answers: set[asyncio.Task[None]] = set()
        self._told: dict[str, float] = {}
        self.draining = False

    @property
    def state(self) -> Literal["draining", "ready", "no_workers"]:
        """Whether partial proofs are answered, and if not, why."""
        if self.draining:
            return "draining"
        return "ready" if self.workers.serving() else "no_workers"

    def application(self) -> web.Application:
        """Return what farmers connect to."""
        app = web.Application()
        app.add_routes([web.get("/ws", self._receive)])
        return app

    async def drain(self) -> None:
        """Answer what was asked, as far as there is time, then say goodbye."""
        self.draining = True
        if not await self.solutions.drain(self.settings.drain_seconds):
            log.warning("questions_given_up", seconds=self.settings.drain_seconds)
        await asyncio.gather(*self._answers, return_exceptions=True)
        await self.farmers.close()
        self.checker.close()

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        tls = request.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(True)
        host = request.remote or ""
        if certificate is None:
            raise web.HTTPForbidden(text="A client certificate is needed.")
        node_id = node_id_of(certificate)
        if not self.allow.admits(node_id, host):
            self._tell_refused(node_id, host)
            raise web.HTTPForbidden(text="This node id is not on the list of farmers.")
        if self.draining or not self.farmers.has_room(node_id):
            self.counters.refused("no_room")
            raise web.HTTPServiceUnavailable(text="There is no room for another connection.")
        socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_SECONDS, max_msg_size=MESSAGE_LIMIT, compress=False, timeout=2.0
        )
        await socket.prepare(request)
        await self.farmers.serve(Farmer(node_id, host, socket), self._take)
        return socket

    def _tell_refused(self, node_id: str, host: str) -> None:
        self.counters.refused("not_allowed")
        now = self._clock()
        self._told = {known: at for known, at in self._told.items() if now - at < _TELL_SECONDS}
        if node_id not in self._told and len(self._told) < 1000:
            self._told[node_id] = now
            log.warning(
                "farmer_refused",
                node_id=node_id,
                host=host,
                what_to_do="If this is a farmer of yours, add its node id: --allow, or a line in --allow-file.",
            )

    def _take(self, farmer: Farmer, message: Message, asked: Solve) -> None:
        if not self.allow.admits(farmer.node_id, farmer.host):
            self._tell_refused(farmer.node_id, farmer.host)
            task = asyncio.create_task(_end(farmer))
        elif farmer.waiting >= MOST_QUESTIONS:
            self.counters.refused("too_many_questions")
            log.warning(
                "question_refused", farmer=farmer.name, why=f"{MOST_QUESTIONS} others wait for an answer"
            )
            return
        else:
            farmer.waiting += 1
            task = asyncio.create_task(self._answer(farmer, message, asked))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, farmer: Farmer, message: Message, asked: Solve) -> None:
        heard = _Heard(new_id("req"), self._clock())
        try:
            question = SolveQuestion(asked.partial_proof, asked.plot_id, asked.k, asked.strength)
            solution = Solution(question.partial_proof, await self._proof(question, heard))
            if not await self.farmers.answer(farmer, message, solution):
                heard.result = "farmer_gone"
        except GpupoolError as error:
            # The protocol has no word for this: a farmer waits in vain, so it is told here.
            heard.result = error.code
            log.error(  # noqa: TRY400 - it is no fault of this program's
                "not_solved", request=heard.number, farmer=farmer.name, why=error.message, remedy=error.remedy
            )
        finally:
            farmer.waiting -= 1
            self._note(farmer, asked, heard)

    async def _proof(self, question: SolveQuestion, heard: "_Heard") -> bytes:
        known = self.solutions.known(question)
        if known is not None:
            heard.result = "known"
            return known
        work, heard.joined = self.solutions.work_on(Asked(question, self.settings.release, heard.number))
        heard.course = work.course
        proof = await asyncio.shield(work.task)
        heard.result = "ok"
        return proof

    def _note(self, farmer: Farmer, asked: Solve, heard: "_Heard") -> None:
        seconds = self._clock() - heard.began
        self.counters.ended(heard.result, asked.strength, seconds)
        log.info(
            "solution",
            request=heard.number,
            farmer=farmer.name,
            plot=asked.plot_id.hex()[:8],
            k=asked.k,
            strength=asked.strength,
            result=heard.result,
            ms=round(seconds * 1000),
            worker=heard.course.worker,
            tries=heard.course.tries,
            joined=heard.joined,
        )

    async def _ask(self, name: str, asked: Asked, seconds: float) -> bytes:
        node = self.workers.node(name)
        if node is None:
            raise AttemptError(Outcome.FAILED, "it was taken off the list")
        proof = await ask_worker(node, self.workers.keyring, asked, seconds)
        await self.checker.check(asked.question, proof)
        return proof

    def view(self) -> dict[str, object]:
        """Return how everything stands, for people."""
        settings = self.settings
        farmers = [
            {
                "node_id": farmer.node_id,
                "host": farmer.host,
                "software": farmer.software,
                "waiting": farmer.waiting,
                "answered": farmer.answered,
            }
            for farmer in self.farmers.connected
        ]
        return {
            "instance_id": self.instance_id,
            "version": __version__,
            "state": self.state,
            "node_id": self.identity.node_id,
            "port": self.port,
            "network": settings.network,
            "chia_rs": settings.release,
            "checks_quality": self.checker.sees_quality,
            "allowed": len(self.allow),
            "running": self.solutions.under_way,
            "farmers": farmers,
            "workers": self._workers(),
        }

    def _workers(self) -> list[dict[str, object]]:
        views = {view.name: view for view in self.dispatcher.pool.view(self._clock())}
        rows: list[dict[str, object]] = []
        for name, solver in self.workers.able().items():
            view = views.get(name)
            row: dict[str, object] = {
                "name": name,
                "usable": True,
                "cores": solver.cores,
                "state": "draining",
            }
            if view is not None:
                counts = {str(outcome): count for outcome, count in view.counts.items()}
                row |= {"state": view.state, "running": view.outstanding, "outcomes": counts}
            rows.append(row)
        rows += [{"name": name, "usable": False, "why": why} for name, why in self.workers.unable().items()]
        return rows


@dataclass(slots=True)
class _Heard:
    """How a farmer's question goes."""

    number: str
    began: float
    result: str = "cancelled"
    course: Course = field(default_factory=Course)
    joined: bool = False


async def _end(farmer: Farmer) -> None:
    with suppress(ConnectionError):
        await farmer.socket.close()
