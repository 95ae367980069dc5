"""The link to control: connect, tell everything, then listen and report until it breaks; then again, for ever.

A session starts with a complete report and ends with the first thing that goes wrong. Nothing that control or the
network does ends the agent: what is placed here goes on running meanwhile. Only when a person has removed the node
from the pool does its work end; the agent stays, in case it is invited again.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog

from gpupool.agent.backoff import Backoff
from gpupool.agent.client import ControlClient, read_token
from gpupool.agent.settings import AgentSettings
from gpupool.agent.viewing import FINAL, is_news
from gpupool.agent.worker import Worker
from gpupool.contracts.agent_link import (
    HEARTBEAT_SECONDS,
    JoinRequest,
    LogsOrder,
    PlacementReport,
    Report,
)
from gpupool.core import failpoints
from gpupool.core.errors import (
    ConflictError,
    GpupoolError,
    NodeRemovedError,
    NotFoundError,
    UnauthorizedError,
)
from gpupool.core.ids import new_id
from gpupool.core.processes import boot_id

_log = structlog.get_logger(__name__)
COALESCE_SECONDS: Final = 0.05
"""Changes that come within this time go into one report."""
ATTEMPTS: Final = 3
"""Times a report is sent before the session counts as broken; control takes it in once."""
_STABLE_SECONDS: Final = 5.0
"""A session that lasted this long makes the next break a first one."""
_FAREWELL_SECONDS: Final = 3.0


class SessionForgottenError(ConflictError):
    """Control does not know this session."""

    code = "session_forgotten"


class Watch(Protocol):
    """Hears whether control is reached."""

    def heard(self) -> None:
        """Control has taken a report."""
        ...

    def lost(self, why: str) -> None:
        """Control was not reached."""
        ...


class Link:
    """Keeps one node linked to control."""

    def __init__(
        self,
        settings: AgentSettings,
        client: ControlClient,
        worker: Worker,
        heartbeat: float = HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        watch: Watch | None = None,
    ) -> None:
        """``watch`` hears whether control is reached."""
        self._settings = settings
        self._watch = watch
        self._client = client
        self._worker = worker
        self._heartbeat = heartbeat
        self._clock = clock
        self._session: str | None = None
        self._spread = 0.0
        self._joined = False
        self._told: dict[str, PlacementReport] = {}
        self._acknowledged = -1
        self._logs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Stay linked until cancelled."""
        backoff = Backoff(most=self._settings.retry_seconds)
        while True:
            began = self._clock()
            try:
                await self._one_session()
            except NodeRemovedError as error:
                await self._end_work(error)
            except GpupoolError as error:
                _log.warning("link broken", code=error.code, error=error.message, remedy=error.remedy)
                if self._watch is not None:
                    self._watch.lost(error.message)
            except Exception:  # noqa: BLE001 - the one supervisor: a fault in here must not end what runs on this node
                _log.exception("link failed")
            self._session = None
            if self._clock() - began >= _STABLE_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next(self._spread))

    async def _end_work(self, removal: NodeRemovedError) -> None:
        _log.error("removed from the pool", error=removal.message, remedy=removal.remedy)
        try:
            await self._worker.dismissed()
        except GpupoolError as error:
            _log.warning("not all has ended", code=error.code, error=error.message, remedy=error.remedy)

    async def say_goodbye(self) -> bool:
        """Tell control that everything has ended and the node leaves; False when control could not be told.

        Call it after `run` was cancelled, so that no report comes behind it.
        """
        if self._session is None:
            return False
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._report(complete=True, leaving=True)
        except (GpupoolError, TimeoutError) as error:
            _log.warning("left without a word", error=str(error))
            return False
        return True

    async def _one_session(self) -> None:
        await self._identify()
        self._session = _new_session()
        self._told, self._acknowledged = {}, -1
        try:
            await self._report(complete=True)
        except (UnauthorizedError, NodeRemovedError):
            self._joined = False
            raise
        _log.info("linked", control=self._client.base, node=self._client.node_id)
        parts = {
            asyncio.ensure_future(self._listen()),
            asyncio.ensure_future(self._keep_reporting()),
        }
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in (*parts, *self._logs):
                part.cancel()
            await asyncio.gather(*parts, *self._logs, return_exceptions=True)
        for part in done:
            part.result()

    async def _identify(self) -> None:
        """Join, once a run and again whenever control does not know us."""
        if self._joined:
            return
        settings = self._settings
        request = JoinRequest(
            name=settings.node_name,
            public_key=self._client.public_key,
            address=settings.node_address,
            hourly_usd=settings.hourly_usd,
        )
        known = self._worker.node_id
        refused: GpupoolError | None = None
        if known is not None:
            try:
                await self._client.join_again(request, known)
            except (UnauthorizedError, NodeRemovedError) as error:
                refused = error
        if known is None or refused is not None:
            await self._join(request, known, refused)
        self._joined = True

    async def _join(self, request: JoinRequest, known: str | None, refused: GpupoolError | None) -> None:
        """Join with the token; ``known`` and ``refused``: who control took this node for, and why it does not now."""
        try:
            given = self._settings.join_token
            path = self._settings.join_token_path
            token = given.get_secret_value() if given else await asyncio.to_thread(read_token, path)
            node_id = await self._client.join(request, token)
        except UnauthorizedError as error:
            if isinstance(refused, NodeRemovedError):
                raise refused from error
            if known is None:
                raise
            # Joined in an earlier run: the key alone is enough, and the token may be gone by now.
            _log.info("not joining again", error=error.message, node=known)
        else:
            await self._worker.identified(node_id)

    async def _listen(self) -> None:
        async for command in self._client.commands(self._worker.last_seq):
            # Shielded, since a link that breaks must not leave a command half carried out.
            order = await asyncio.shield(self._worker.handle(command))
            if order is not None:
                task = asyncio.create_task(self._answer(order), name=f"logs {order.request_id}")
                self._logs.add(task)
                task.add_done_callback(self._logs.discard)

    async def _answer(self, order: LogsOrder) -> None:
        try:
            text = await self._worker.log_tail(order.placement_id, order.lines)
        except NotFoundError as error:
            text = f"{error.message}\n"
        try:
            await self._client.send_log(order.request_id, text)
        except GpupoolError as error:
            _log.warning("log not delivered", placement=order.placement_id, error=error.message)

    async def _keep_reporting(self) -> None:
        while True:
            await self._worker.news(self._heartbeat)
            await asyncio.sleep(COALESCE_SECONDS)
            await self._report(complete=False)

    async def _report(self, *, complete: bool, leaving: bool = False) -> None:
        seq = self._worker.last_seq
        placements = await self._worker.placements()
        if not complete:
            placements = [item for item in placements if is_news(item, self._told.get(item.placement_id))]
        report = Report(
            report_id=new_id("rep"),
            sent_at=datetime.now(UTC),
            session=self._session or "",
            boot_id=boot_id(),
            complete=complete,
            devices=list(self._worker.devices) if complete else None,
            placements=placements,
            acknowledged=seq if seq != self._acknowledged else None,
            leaving=leaving,
        )
        failpoints.reach("agent.report.before")
        await self._send(report)
        failpoints.reach("agent.report.after")
        self._acknowledged = seq
        for item in placements:
            if item.state in FINAL:
                self._told.pop(item.placement_id, None)
            else:
                self._told[item.placement_id] = item
        await asyncio.shield(self._worker.told(placements))

    async def _send(self, report: Report) -> None:
        """Deliver one report; a lost answer is asked for again under the same id."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                reply = await self._client.report(report)
            except GpupoolError as error:
                if attempt == ATTEMPTS or error.status < 500:
                    raise
                await asyncio.sleep(COALESCE_SECONDS * 4**attempt)
            else:
                if self._watch is not None:
                    self._watch.heard()
                self._spread = reply.spread_seconds
                if not reply.session_known and not report.complete:
                    raise SessionForgottenError(remedy="The agent connects anew and tells everything again.")
                return


def _new_session() -> str:
    """Return a name that sorts after all earlier ones of this boot, so that control can tell which is newer.

    By monotonic time: it goes on through restarts of the agent, and setting the clock does not turn it back.
    """
    return f"s-{time.monotonic_ns():020d}-{secrets.token_hex(4)}"
