"""The agent link. Bodies are parsed only after their signature has been checked."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from pydantic import ValidationError
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope

from gpupool.contracts.agent_link import (
    KEEPALIVE_SECONDS,
    Command,
    JoinReply,
    JoinRequest,
    Report,
    ReportReply,
)
from gpupool.contracts.base import Message
from gpupool.contracts.problems import describe
from gpupool.control.http.guard import MINTED
from gpupool.control.joining import join, removal, valid_token
from gpupool.control.pool import Pool
from gpupool.control.reporting import take_report
from gpupool.control.routes.paging import By, PoolHere, answer
from gpupool.core import failpoints
from gpupool.core.errors import InvalidInputError, UnauthorizedError
from gpupool.core.keys import HEADER_NODE
from gpupool.fleet.ports.store import QueuedCommand

router = APIRouter(prefix="/v1/agent", tags=["agent link"])
_BATCH = 100
_NODE = HEADER_NODE.lower()
_REPORTS = "/v1/agent/reports"
_M = TypeVar("_M", bound=Message)


async def _signed_by(request: Request, pool: PoolHere) -> str:
    """Return the node that signed the request; raise UnauthorizedError where none that is known did."""
    return await check_signature(pool, request.scope, request.headers, await request.body())


async def check_signature(pool: Pool, scope: Scope, headers: Mapping[str, str], body: bytes) -> str:
    """Return the node that signed a request; raise UnauthorizedError where none that is known did.

    ``headers``: names in lower case, or of any.
    """
    node_id = headers.get(_NODE, "")
    key = await _key_of(pool, node_id)
    raw_path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    target = raw_path.decode("latin-1") + (f"?{query.decode('latin-1')}" if query else "")
    nonce, stamp = pool.signatures.check(node_id, key, scope["method"], target, body, headers)
    if pool.nonces is not None:
        await pool.nonces.admit(node_id, nonce, stamp, harmless=target == _REPORTS)
    return node_id


async def _key_of(pool: Pool, node_id: str) -> str:
    key = pool.node_keys.get(node_id)
    if key is None:
        # Ten thousand agents that come back at once are no reason for as many reads.
        node = (await pool.snapshot()).nodes.get(node_id)
        if node is None or node.removed:
            async with pool.store.read() as reader:
                node = await reader.node(node_id) if 0 < len(node_id) <= 100 else None
        if node is None:
            raise UnauthorizedError(
                "The request is not signed by a known node.", remedy="Let the agent join again."
            )
        if node.removed:
            raise removal(node)
        key = pool.node_keys[node_id] = node.public_key
    return key


Signer = Annotated[str, Depends(_signed_by)]


async def _parsed(request: Request, kind: type[_M]) -> _M:
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise InvalidInputError(describe(error)) from error


@router.post("/join", response_model=JoinReply)
async def join_node(pool: PoolHere, request: JoinRequest, http: Request, by: By) -> Response:
    """Make a node known under its public key; takes a join token, and of a known node its signature."""
    minted: str | None = http.scope.get(MINTED)
    if by is None and minted is None:
        await _check_own_key(pool, request, http)
    async with pool.change(by) as change:
        token = None if minted is None else await valid_token(change.writer, minted, change.at)
        change.by = by if token is None else token.id
        node = await join(change, request, token)
    pool.links.expect(node.id)
    return answer(JoinReply(node_id=node.id))


async def _check_own_key(pool: Pool, request: JoinRequest, http: Request) -> None:
    """Raise UnauthorizedError unless the node that joins again has signed that with the key it names."""
    node_id = await _signed_by(http, pool)
    if request.public_key != await _key_of(pool, node_id):
        raise UnauthorizedError("A node joins again under its own key only.")


@router.get(
    "/commands",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/x-ndjson": {}}, "description": "One command a line, without end."}
    },
)
async def stream_commands(
    pool: PoolHere, node_id: Signer, after: Annotated[int, Query(ge=0, lt=2**63)] = 0
) -> StreamingResponse:
    """Stream the node's commands after ``after`` as they come; a newer stream of the node ends this one."""
    return StreamingResponse(command_lines(pool, node_id, after), media_type="application/x-ndjson")


async def command_lines(pool: Pool, node_id: str, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a node's command stream."""
    stream = pool.links.open_stream(node_id)
    try:
        # Looked for where there may be one, and when woken: ten thousand streams that look now and then are too many.
        look = not pool.links.is_idle(node_id)
        while not (stream.ended or pool.changes.closed):
            for command in stream.take():
                yield _line(command)
            queued: Sequence[QueuedCommand] = ()
            if look:
                async with pool.store.read() as reader:
                    queued = await reader.commands(node_id, after=after, limit=_BATCH)
            for kept in queued:
                after = kept.seq
                failpoints.reach(f"control.command.{kept.kind}.before")
                yield _line(
                    Command.model_validate({"seq": after, "kind": kept.kind, "payload": kept.payload})
                )
                failpoints.reach(f"control.command.{kept.kind}.after")
            look = len(queued) == _BATCH or await stream.woken(KEEPALIVE_SECONDS)
            if not look:
                yield b"\n"
    finally:
        pool.links.close_stream(node_id, stream)


def _line(command: Command) -> bytes:
    return command.model_dump_json().encode() + b"\n"


@router.post("/reports", response_model=ReportReply)
async def report(pool: PoolHere, node_id: Signer, request: Request) -> Response:
    """Take what a node reports."""
    return answer(await take_report(pool, node_id, await _parsed(request, Report)))


@router.post("/logs/{request_id}", status_code=204, response_class=Response)
async def answer_logs(pool: PoolHere, node_id: Signer, request_id: str, request: Request) -> Response:
    """Take the text that a ``logs`` command asked for."""
    pool.logs.answer(request_id, node_id, await request.body())
    return Response(status_code=204)
