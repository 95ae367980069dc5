"""The HTTP surface of a recompute server: what harvesters ask, and what every process of the pool shows of itself."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import structlog
from aiohttp import web

from gpupool import __version__
from gpupool.contracts.recompute import (
    BINARY_TYPE,
    BODY_LIMIT,
    CHECKED_HEADER,
    DEADLINE_HEADER,
    MAX_DEADLINE_MS,
    PROOFS_PATH,
    QUALITIES_PATH,
    SERVER_PATH,
    SOLUTIONS_PATH,
    KnownAnswersView,
    ProofReply,
    QualityReply,
    QueueView,
    RecomputeDevice,
    RecomputeServerView,
    SolutionReply,
    hexadecimal,
)
from gpupool.core.errors import (
    DeadlineError,
    GpupoolError,
    InvalidInputError,
    TooLargeError,
    UnavailableError,
)
from gpupool.pos.parameters import LEVELS, PLOT_SIZES, K
from gpupool.recompute.demo import known_proof
from gpupool.recompute.server.access import Tokens, access_guard
from gpupool.recompute.server.banner import request_line, say
from gpupool.recompute.server.client_names import client_of
from gpupool.recompute.server.crew import Place
from gpupool.recompute.server.engine import WrongAnswerError
from gpupool.recompute.server.metrics import Metrics
from gpupool.recompute.server.problems import REQUEST_ID, name_request, with_problems
from gpupool.recompute.server.questions import (
    AnyQuestion,
    Asking,
    level_of,
    read_proof_question,
    read_quality_question,
)
from gpupool.recompute.server.rates import Rates
from gpupool.recompute.server.solving import NoSolverError, SolverDesk
from gpupool.recompute.server.tickets import Answer
from gpupool.recompute.server.work import WorkQueue

log = structlog.get_logger(__name__)
State = Literal["starting", "ready", "draining"]
_Q = TypeVar("_Q", bound=AnyQuestion)
_MEASURED_PLOT: Final = known_proof().plot_id
KNOWN: Final = "known"
"""What request lines name as the engine where nothing had to be computed."""


class NotReadyError(UnavailableError):
    """No worker of this server is ready; it takes no requests now."""

    code = "not_ready"
    default_remedy = "Wait until /readyz answers 200, or use another server."


class DrainingError(UnavailableError):
    """The server is stopping and takes no new requests."""

    code = "draining"
    default_remedy = "Use another server."


@dataclass(slots=True)
class _Heard:
    """What is known of a request while it is served."""

    kind: Asking
    deadline: float = 0.0
    """Monotonic seconds."""
    question: AnyQuestion | None = None
    answer: Answer | None = None

    @property
    def engine(self) -> str:
        """What answered, as request lines name it."""
        if self.answer is None:
            return "none"
        return KNOWN if self.answer.worker is None else self.answer.worker.engine

    @property
    def used_card(self) -> bool:
        """Whether a card answered."""
        worker = None if self.answer is None else self.answer.worker
        return worker is not None and worker.kind == "gpu"


class RecomputeServer:
    """One server: its routes over a queue of work and the workers behind it."""

    def __init__(
        self,
        queue: WorkQueue,
        instance_id: str,
        *,
        deadline_ms: int,
        tokens: Tokens | None = None,
        certificate: bool = False,
        solver: SolverDesk | None = None,
    ) -> None:
        self._queue, self._crew = queue, queue.crew
        self._solver = solver
        self._instance_id = instance_id
        self._deadline_ms = deadline_ms
        self._tokens = tokens
        self._certificate = certificate
        self._draining = False
        self._metrics = Metrics(
            queue, ready=lambda: self.state == "ready", solutions=None if solver is None else solver.queue
        )

    @property
    def state(self) -> State:
        """Whether requests are taken, and if not, why."""
        if self._draining:
            return "draining"
        return "ready" if self._queue.ready else "starting"

    def end(self) -> None:
        """Take no new requests from now on."""
        self._draining = True

    def application(self) -> web.Application:
        """Return the application that serves this server."""
        guard = access_guard(self._tokens, certificate=self._certificate)
        app = web.Application(middlewares=[with_problems, guard], client_max_size=BODY_LIMIT)
        app.on_response_prepare.append(name_request)
        app.add_routes(
            [
                web.post(PROOFS_PATH, self._recover_proof),
                web.post(QUALITIES_PATH, self._look_up_quality),
                web.post(SOLUTIONS_PATH, self._solve),
                web.get(SERVER_PATH, self._show_server),
                web.get("/healthz", self._show_health),
                web.get("/readyz", self._show_readiness),
                web.get("/metrics", self._show_metrics),
            ]
        )
        return app

    async def _recover_proof(self, request: web.Request) -> web.Response:
        question, xs = await self._answer(request, "proof", read_proof_question)
        checked: Literal["challenge", "tables"] = "tables" if question.challenge is None else "challenge"
        if _wants_binary(request):
            return _binary(xs, checked, question.k)
        return _json(ProofReply(proof=hexadecimal(xs), checked=checked))

    async def _look_up_quality(self, request: web.Request) -> web.Response:
        question, pair = await self._answer(request, "quality", read_quality_question)
        if _wants_binary(request):
            return _binary(pair, "tables", question.k)
        return _json(QualityReply(x=hexadecimal(pair)))

    async def _solve(self, request: web.Request) -> web.Response:
        if self._solver is None:
            raise NoSolverError
        _, proof = await self._answer(request, "solve", self._solver.read)
        if _wants_binary(request):
            return web.Response(body=bytes(proof), content_type=BINARY_TYPE)
        return _json(SolutionReply(proof=bytes(proof).hex()))

    async def _answer(
        self,
        request: web.Request,
        kind: Asking,
        read: Callable[[bytes], _Q],
    ) -> tuple[_Q, tuple[int, ...]]:
        """Read a question, have it worked on within its deadline, and count and log how it ended."""
        began = self._queue.clock.monotonic()
        heard = _Heard(kind)
        result = "client_left"
        try:
            heard.deadline = began + self._seconds(request)
            answer = await self._work(request, heard, read)
            result = "ok"
        except WrongAnswerError as error:
            result = error.code
            log.exception("wrong_answer_withheld", request=request[REQUEST_ID], kind=kind)
            raise
        except GpupoolError as error:
            result = error.code
            raise
        except web.HTTPException as error:
            result = f"http_{error.status}"
            raise
        finally:
            self._metrics.ended(kind, result)
            self._log_request(request, heard, began, result)
        return answer

    async def _work(
        self, request: web.Request, heard: "_Heard", read: Callable[[bytes], _Q]
    ) -> tuple[_Q, tuple[int, ...]]:
        """Return question and answer."""
        queue = self._queue
        if heard.kind != "solve" or self._solver is None:
            self._check_open()
        elif self._draining:
            raise DrainingError
        else:
            queue = self._solver.queue
        question = heard.question = read(await self._body(request, heard.deadline))
        answer = heard.answer = await queue.run(
            heard.kind,
            question,
            heard.deadline,
            client_of(request.remote),
            fresh=_wants_fresh(request, question),
        )
        if answer.worker is not None:
            self._metrics.answered(heard.kind, level_of(question), answer.seconds, answer.worker)
        return question, answer.xs

    def _log_request(self, request: web.Request, heard: "_Heard", began: float, result: str) -> None:
        asked, clock, client = heard.question, self._queue.clock, request.remote or "?"
        ms, request_id = (clock.monotonic() - began) * 1000, request[REQUEST_ID]
        plot = None if asked is None else (asked.k, level_of(asked))
        epoch_ms = int(clock.now().timestamp() * 1000)
        computed = None if heard.answer is None else round(heard.answer.seconds * 1000, 3)
        say(
            request_line(
                epoch_ms,
                client,
                plot,
                ms,
                engine=heard.engine,
                used_gpu=heard.used_card,
                letter="S" if heard.kind == "solve" else "C",
                result=result,
                request_id=request_id,
            )
        )
        log.debug(
            "request",
            request=request_id,
            kind=heard.kind,
            plot=None if asked is None else asked.plot_id.hex()[:8],
            ms=round(ms, 3),
            compute_ms=computed,
            result=result,
        )

    def _check_open(self) -> None:
        """Raise where no request is taken: one may wait for a lost worker, but not for the first one."""
        if self._draining:
            raise DrainingError
        if not self._queue.ready and self._crew.why_not() is None:
            raise NotReadyError("The server compiles its kernels and tests itself; it takes no requests yet.")

    async def _body(self, request: web.Request, deadline: float) -> bytes:
        if (request.content_length or 0) > BODY_LIMIT:
            raise TooLargeError(f"A request has at most {BODY_LIMIT} bytes.")
        try:
            async with asyncio.timeout(max(0.0, deadline - self._queue.clock.monotonic())):
                return await request.read()
        except TimeoutError as error:
            raise DeadlineError("The request did not arrive before its deadline.") from error

    def _seconds(self, request: web.Request) -> float:
        text = request.headers.get(DEADLINE_HEADER)
        if text is None:
            return self._deadline_ms / 1000
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:12]) <= MAX_DEADLINE_MS):
            raise InvalidInputError(f"{DEADLINE_HEADER} must be a number from 1 to {MAX_DEADLINE_MS}.")
        return int(text) / 1000

    async def _show_server(self, request: web.Request) -> web.Response:
        queue, places = self._queue, self._crew.places
        return _json(
            RecomputeServerView(
                instance_id=self._instance_id,
                version=__version__,
                state=self.state,
                k=list(PLOT_SIZES) if any(place.plan.kind == "cpu" for place in places) else [K],
                levels=list(LEVELS),
                devices=[_device(place, queue.rates) for place in places],
                rates=queue.rates.view(),
                queue=QueueView(running=queue.running, waiting=queue.waiting, room=queue.room),
                answers=KnownAnswersView(kept=len(queue.known), hits=queue.known.hits, joined=queue.joined),
                solver=None if self._solver is None else self._solver.view(),
            )
        )

    async def _show_health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"status": "ok", "role": "recompute", "instance_id": self._instance_id, "version": __version__}
        )

    async def _show_readiness(self, request: web.Request) -> web.Response:
        self._check_open()
        if not self._queue.ready:
            raise NotReadyError(f"No worker is ready ({self._crew.why_not()}).")
        return web.json_response({"status": "ready", "instance_id": self._instance_id})

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )


def _device(place: Place, rates: Rates) -> RecomputeDevice:
    plan = place.plan
    measured = rates.view(plan.factory)
    return RecomputeDevice(
        kind=plan.kind,
        name=plan.name,
        engine=plan.engine,
        index=plan.index,
        workers=plan.threads,
        state=place.state,
        restarts=place.deaths,
        why=place.why,
        rates=[rate for rate in measured if (rate.proof_ms, rate.quality_ms) != (None, None)],
    )


def _wants_fresh(request: web.Request, question: AnyQuestion) -> bool:
    """Tell whether the client wants to see this server compute.

    The shipped proof is always computed: it is what tools measure and check servers with, also through a proxy.
    """
    told = "no-cache" in request.headers.get("Cache-Control", "").lower()
    return told or question.plot_id == _MEASURED_PLOT


def _wants_binary(request: web.Request) -> bool:
    return request.headers.get("Accept", "").strip().lower() == BINARY_TYPE


def _binary(numbers: tuple[int, ...], checked: str, k: int) -> web.Response:
    size = 4 if k <= 32 else 8
    body = b"".join(number.to_bytes(size, "big") for number in numbers)
    return web.Response(body=body, content_type=BINARY_TYPE, headers={CHECKED_HEADER: checked})


def _json(message: ProofReply | QualityReply | SolutionReply | RecomputeServerView) -> web.Response:
    return web.Response(body=message.model_dump_json().encode(), content_type="application/json")
