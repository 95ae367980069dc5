"""Faults in the shape that OpenAI's clients understand: ``{"error": {message, type, param, code}}``.

The message says what happened, to what, and what to do; ``code`` is stable, so that scripts may match it.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from aiohttp import hdrs, web

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
_CODES: Final = {
    "exceed_context_size_error": "context_length_exceeded",
    "invalid_request_error": "invalid_request",
    "not_supported_error": "not_supported",
}
"""OpenAI's code, or ours, for types that llama.cpp puts in its place."""


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
    error = {"message": message, "type": kind_of(status), "param": param, "code": code}
    return json.dumps({"error": error}).encode()


def openai_error(status: int, value: Any) -> dict[str, Any] | None:
    """Return an upstream's parsed error in OpenAI's shape, or None where it has no message in it.

    What it says beyond the four fields stays. A numeric code repeats the status and says nothing; the type says more.
    """
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    kind, code, param = error.get("type"), error.get("code"), error.get("param")
    if isinstance(kind, str) and isinstance(code, str | None) and "code" in error and "param" in error:
        return error
    said = kind if isinstance(kind, str) and kind else "upstream_error"
    return {
        **error,
        "type": kind_of(status),
        "param": param if isinstance(param, str) else None,
        "code": code if isinstance(code, str) else _CODES.get(said, said),
    }


def kind_of(status: int) -> str:
    """Return OpenAI's type of an error with this status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def refuse_head(status: int, sentence: str) -> web.Response:
    """Return the answer to a request whose head could not be read."""
    response = GatewayError(status, "invalid_request", sentence).response()
    response.headers[hdrs.SERVER] = "gpupool"
    return response


def from_http_exception(
    error: web.HTTPException, method: str, path: str, offered: Collection[str]
) -> GatewayError:
    """Translate what the HTTP library refuses by itself (no such route, wrong method, body too large).

    ``offered``: the paths that take a POST.
    """
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return GatewayError(
            405,
            "method_not_allowed",
            f"{path[:200]} does not take {method}; use {allowed}.",
            headers={"Allow": allowed},
        )
    if error.status == 404:
        message = (
            f"There is no {method} {path[:200]}. There are POST {', '.join(offered)}, "
            "and GET /v1/models, which lists the models."
        )
        return GatewayError(404, "unknown_url", message)
    return GatewayError(error.status, "invalid_request", error.reason)
