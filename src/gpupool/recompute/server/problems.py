"""Faults as answers: ours and the HTTP library's alike leave as problem+json with a stable code."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from gpupool.contracts.problems import MEDIA_TYPE, Problem, problem_of
from gpupool.contracts.recompute import BODY_LIMIT, REQUEST_ID_HEADER
from gpupool.core.errors import GpupoolError, NotFoundError, TooLargeError
from gpupool.core.ids import new_id
from gpupool.recompute.server.access import CHALLENGE
from gpupool.recompute.server.work import OverloadedError

REQUEST_ID: Final = web.RequestKey("request_id", str)
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def with_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Name the request, and let every fault leave as a problem."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    request[REQUEST_ID] = given if _GIVEN_ID.fullmatch(given) else new_id("req")
    try:
        return await handler(request)
    except GpupoolError as error:
        return problem_response(error, request[REQUEST_ID])
    except web.HTTPException as error:
        return _refusal(error, request)


async def name_request(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Put the request's id on its answer, and what a refused one lacks."""
    given, challenge = request.get(REQUEST_ID), request.get(CHALLENGE)
    if given is not None:
        response.headers[REQUEST_ID_HEADER] = given
    if challenge is not None:
        response.headers["WWW-Authenticate"] = challenge


def problem_response(error: GpupoolError, request_id: str) -> web.Response:
    """Return the answer that carries ``error``."""
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, OverloadedError) else {}
    return _response(problem_of(error, request_id), headers)


def refuse_head(status: int, sentence: str) -> web.Response:
    """Return the answer to a request whose head could not be read, and which therefore has an id of ours."""
    request_id = new_id("req")
    problem = Problem(
        title="The request is refused.",
        status=status,
        code="too_large" if status == 431 else "invalid_input",
        detail=sentence,
        remedy="Send HTTP/1.1 with few and short headers.",
        request_id=request_id,
    )
    return _response(problem, {REQUEST_ID_HEADER: request_id})


def _refusal(error: web.HTTPException, request: web.Request) -> web.Response:
    """Translate what the HTTP library refuses by itself."""
    if error.status == 404:
        message = f"There is no {request.method} {request.path[:200]} here."
        remedy = "Use POST /v1/proofs, /v1/qualities or /v1/solutions, or GET /v1/server."
        return problem_response(NotFoundError(message, remedy=remedy), request[REQUEST_ID])
    if error.status == 413:
        return problem_response(
            TooLargeError(f"A request has at most {BODY_LIMIT} bytes."), request[REQUEST_ID]
        )
    problem = Problem(
        title="The request is refused.",
        status=error.status,
        code="method_not_allowed" if error.status == 405 else "invalid_input",
        detail=f"{request.method} {request.path[:200]}: {error.reason}.",
        remedy="Use POST /v1/proofs, /v1/qualities or /v1/solutions, or GET /v1/server.",
        request_id=request[REQUEST_ID],
    )
    return _response(problem, {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})


def _response(problem: Problem, headers: Mapping[str, str]) -> web.Response:
    return web.Response(
        status=problem.status,
        body=problem.model_dump_json(exclude_none=True).encode(),
        content_type=MEDIA_TYPE,
        headers=headers,
    )
