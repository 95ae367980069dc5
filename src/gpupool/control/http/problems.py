"""Errors as answers: every fault, from whatever layer, leaves as problem+json with a stable code and a remedy."""

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gpupool.contracts.problems import MEDIA_TYPE, problem_of
from gpupool.control.authorising import is_miner_path
from gpupool.core.errors import BusyError, GpupoolError, InvalidInputError, NotFoundError
from gpupool.core.ids import new_id
from gpupool.fleet.join_tokens import PREFIX

_LOG = structlog.get_logger(__name__)
_SHOWN_FAULTS: Final = 10
_JOIN_TOKEN: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]+")
"""A 404 of the miner API carries one, which no log is to hold."""
_RETRY_STATUSES: Final = frozenset({429, 503})


class MethodNotAllowedError(InvalidInputError):
    """The path does not take this method."""

    code = "method_not_allowed"
    status: ClassVar[int] = 405
    default_remedy = "See /openapi.json for the methods of each path."


def request_id_of(scope: Mapping[str, Any]) -> str:
    """Return the id of the request that ``scope`` describes."""
    return str(scope.get("gpupool.request_id") or new_id("req"))


def problem_response(
    error: GpupoolError, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the answer that carries ``error``."""
    extra = dict(headers or {})
    if error.status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    if error.status in _RETRY_STATUSES:
        seconds = error.retry_after if isinstance(error, BusyError) else None
        extra["Retry-After"] = str(max(1, math.ceil(seconds or 1)))
    body = problem_of(error, request_id).model_dump_json()
    return Response(body, status_code=error.status, media_type=MEDIA_TYPE, headers=extra)


def note_refusal(scope: Mapping[str, Any], error: GpupoolError) -> None:
    """Log why the miner API refuses something: its client shows people no more than the status.

    Whoever asks too often is not noted, so that nobody can fill the log.
    """
    if is_miner_path(scope["path"]) and error.status < 500 and not isinstance(error, BusyError):
        client = scope.get("client")
        _LOG.info(
            "miner.refused",
            method=scope["method"],
            path=scope["path"][:200],
            client=client[0] if client else None,
            code=error.code,
            message=_JOIN_TOKEN.sub(f"{PREFIX}…", error.message),
            request_id=request_id_of(scope),
        )


async def _known(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, GpupoolError) else GpupoolError()
    note_refusal(request.scope, known)
    request_id = request_id_of(request.scope)
    if known.status >= 500:
        _LOG.warning(
            "request.failed",
            path=request.url.path,
            code=known.code,
            message=known.message,
            request_id=request_id,
        )
    return problem_response(known, request_id)


async def _http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = (error.headers if isinstance(error, HTTPException) else None) or {}
    where = f"{request.method} {request.url.path[:200]}"
    known: GpupoolError
    if status == 404:
        known = NotFoundError(f"There is no {where}.", remedy="See /openapi.json for the paths there are.")
    elif status == 405:
        known = MethodNotAllowedError(f"{where} is not possible.")
    elif status < 500:
        known = InvalidInputError(f"{where} was not understood.")
    else:
        known = GpupoolError()
    return problem_response(known, request_id_of(request.scope), headers)


async def _invalid(request: Request, error: Exception) -> Response:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    lines = [
        f"{'.'.join(str(part) for part in fault['loc']) or 'input'}: {fault['msg']}"
        for fault in faults[:_SHOWN_FAULTS]
    ]
    return problem_response(InvalidInputError("; ".join(lines) or None), request_id_of(request.scope))


async def _unforeseen(request: Request, error: Exception) -> Response:
    request_id = request_id_of(request.scope)
    _LOG.error("request.crashed", path=request.url.path, request_id=request_id, exc_info=error)
    remedy = f"Look for {request_id} in control's log and report what it says."
    # Sent outside the boundary, which gives every other answer its request id.
    fault = GpupoolError("Control failed on this request.", remedy=remedy)
    return problem_response(fault, request_id, {"X-Request-Id": request_id})


def add_problem_handlers(app: FastAPI) -> None:
    """Let every error of the routes leave as problem+json."""
    app.add_exception_handler(GpupoolError, _known)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unforeseen)
