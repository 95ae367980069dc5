"""Faults in the shape that OpenAI's clients understand: ``{"error": {message, type, param, code}}``.

The message says what happened, to what, and what to do; ``code`` is stable, so that scripts may match it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class GatewayError(Exception):
    """A request that ends with an error of ours."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Return the error as JSON on one line, fit for a body and for an event's data."""
        return error_body(self.status, self.code, self.message, self.param)

    def response(self) -> web.Response:
        """Return the answer that carries the error."""
        return web.Response(
            status=self.status, body=self.body(), content_type="application/json", headers=self.headers
        )


def error_body(status: int, code: str, message: str, param: str | None = None) -> bytes:
    """Return OpenAI's error object as JSON."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def is_openai_error(value: Any) -> bool:
    """Tell whether an upstream's parsed body already has the shape."""
    error = value.get("error") if isinstance(value, dict) else None
    return isinstance(error, dict) and isinstance(error.get("message"), str)


def from_http_exception(error: web.HTTPException, method: str, path: str) -> GatewayError:
    """Translate what the HTTP library refuses by itself (no such route, wrong method, body too large)."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return GatewayError(
            405,
            "method_not_allowed",
            f"{path[:200]} does not take {method}; use {allowed}.",
            headers={"Allow": allowed},
        )
    if error.status == 404:
        message = f"There is no {method} {path[:200]}. GET /v1/models lists what can be asked here."
        return GatewayError(404, "unknown_url", message)
    return GatewayError(error.status, "invalid_request", error.reason)
