"""A control for tests of the agent: speaks the agent link truthfully, and misbehaves when told to.

It checks every signature, keeps each node's numbered commands until they are acknowledged, and records what it was
told. It decides nothing.
"""

import asyncio
import secrets
from contextlib import suppress
from typing import Any, Self

from aiohttp import web

from gpupool.contracts.agent_link import Command, JoinReply, JoinRequest, PlacementReport, Report, ReportReply
from gpupool.contracts.problems import MEDIA_TYPE, problem_of
from gpupool.core import keys
from gpupool.core.errors import GpupoolError, NodeRemovedError, UnauthorizedError
from gpupool.core.tokens import same_secret
from gpupool.fleet.placements import PlacementState


class ScriptedControl:
    """One control on a port of its own. Use as an async context manager."""

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(16)
        self.port = port
        self.joins: list[JoinRequest] = []
        self.reports: list[Report] = []
        self.placements: dict[str, PlacementReport] = {}
        """The last word on each placement."""
        self.commands: list[Command] = []
        self.logs: dict[str, str] = {}
        self.streams = 0
        self.fail_reports = 0
        """So many reports are taken in and then answered with 503."""
        self.forget_session = False
        """The next incremental report is answered with session_known False."""
        self.silent = False
        """Accept reports and never answer them."""
        self.removed = False
        """The node was removed by a person: whatever its key signs is refused, and so is its token."""
        self._node_id = "node-1"
        self._key = ""
        self._seq = 0
        self._known: set[str] = set()
        self._nonces: set[str] = set()
        self._news = asyncio.Event()
        self._open: list[asyncio.Task[Any]] = []
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=8 * 2**20)
        app.add_routes(
            [
                web.post("/v1/agent/join", self._join),
                web.post("/v1/agent/reports", self._report),
                web.get("/v1/agent/commands", self._commands),
                web.post("/v1/agent/logs/{request_id}", self._log),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.break_streams()
        if self._runner is not None:
            await self._runner.cleanup()

    def order(self, kind: str, payload: dict[str, Any], *, kept: bool = True) -> Command:
        """Queue a command for the node."""
        self._seq += kept
        command = Command.model_validate({"seq": self._seq if kept else 0, "kind": kind, "payload": payload})
        self.commands.append(command)
        self._news.set()
        return command

    def break_streams(self) -> None:
        """Cut every open command stream."""
        for task in self._open:
            task.cancel()

    def another_pool(self) -> None:
        """Become a control that has never seen this node."""
        self._node_id, self._seq = "node-2", 0
        self.commands.clear()
        self._key = ""

    def state(self, placement_id: str) -> PlacementState | None:
        """Return the last reported state of a placement."""
        known = self.placements.get(placement_id)
        return known.state if known else None

    async def _join(self, request: web.Request) -> web.Response:
        if self.removed:
            return refuse(NodeRemovedError())
        if not same_secret(request.headers.get("Authorization", ""), f"Bearer {self.token}"):
            return refuse(UnauthorizedError("The join token is not valid."))
        wanted = JoinRequest.model_validate_json(await request.read())
        self.joins.append(wanted)
        self._key = wanted.public_key
        return web.json_response(JoinReply(node_id=self._node_id).model_dump())

    async def _verified(self, request: web.Request) -> bytes:
        body = await request.read()
        if self.removed:
            raise NodeRemovedError
        stamp, nonce = request.headers[keys.HEADER_TIME], request.headers[keys.HEADER_NONCE]
        if request.headers[keys.HEADER_NODE] != self._node_id or nonce in self._nonces or not self._key:
            raise UnauthorizedError("This node is not known.")
        self._nonces.add(nonce)
        message = keys.canonical_request(request.method, request.raw_path, body, stamp, nonce)
        keys.verify_signature(self._key, request.headers[keys.HEADER_SIGNATURE], message)
        return body

    async def _report(self, request: web.Request) -> web.Response:
        try:
            report = Report.model_validate_json(await self._verified(request))
        except GpupoolError as error:
            return refuse(error)
        if self.silent:
            await asyncio.Event().wait()
        if self.forget_session and not report.complete:
            self.forget_session = False
            return web.json_response(ReportReply(session_known=False).model_dump())
        if report.report_id not in self._known:
            self._take_in(report)
        if self.fail_reports:
            self.fail_reports -= 1
            return web.Response(status=503)
        return web.json_response(ReportReply().model_dump())

    def _take_in(self, report: Report) -> None:
        self._known.add(report.report_id)
        self.reports.append(report)
        if report.complete:
            self.placements.clear()
        self.placements.update({item.placement_id: item for item in report.placements})
        if report.acknowledged is not None:
            done = report.acknowledged
            self.commands[:] = [item for item in self.commands if item.seq > done or item.seq == 0]

    async def _commands(self, request: web.Request) -> web.StreamResponse:
        try:
            await self._verified(request)
        except GpupoolError as error:
            return refuse(error)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        task = asyncio.current_task()
        if task is not None:
            self._open.append(task)
        self.streams += 1
        sent = int(request.query["after"])
        with suppress(asyncio.CancelledError, ConnectionError):
            while True:
                self._news.clear()
                for command in list(self.commands):
                    if command.seq > sent or command.seq == 0:
                        await response.write(command.model_dump_json().encode() + b"\n")
                    if command.seq == 0:
                        self.commands.remove(command)
                    sent = max(sent, command.seq)
                await self._news.wait()
        return response

    async def _log(self, request: web.Request) -> web.Response:
        try:
            body = await self._verified(request)
        except GpupoolError as error:
            return refuse(error)
        self.logs[request.match_info["request_id"]] = body.decode()
        return web.Response(status=204)


def refuse(error: GpupoolError) -> web.Response:
    """Return an error as problem+json."""
    body = problem_of(error).model_dump_json()
    return web.Response(status=error.status, body=body.encode(), content_type=MEDIA_TYPE)
