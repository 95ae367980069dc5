"""Reads and checks a client's request, as far as routing needs it; the rest is for the model's server to judge."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from gpupool.core.nesting import is_deeper
from gpupool.gateway.faults import GatewayError

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
CHAT: Final = "/v1/chat/completions"
OFFERS: Final = {CHAT: "chat", "/v1/completions": "text completions", "/v1/embeddings": "embeddings"}
"""The paths that a model may serve, and what each is called."""
_MAX_MODEL_CHARACTERS: Final = 200
MOST_LEVELS: Final = 200
"""Levels of lists and objects. More than control takes: the JSON schemas of a client's tools can be deep."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that can be routed."""

    model: str
    body: bytes
    """As the client sent it, in plain form."""


async def read_call(request: web.Request, body_seconds: float) -> Call:
    """Return the call; its body may take ``body_seconds``. Raises GatewayError (400, 408, 413) where there is none in it."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(body_seconds):
            body = await request.read()
    except TimeoutError as error:
        message = f"The request's body did not arrive within {body_seconds:g} s."
        raise GatewayError(408, "request_timeout", message) from error
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large() from error
    value = _parse(body)
    call = Call(_model_of(value), body)
    if request.path == CHAT and value.get("messages") == []:
        message = "The messages parameter is empty; give at least one message."
        raise GatewayError(400, "empty_array", message, param="messages")
    return call


def _too_large() -> GatewayError:
    return GatewayError(
        413, "request_too_large", f"The request's body is larger than {MAX_BODY_BYTES} bytes; send less."
    )


def _too_deep() -> GatewayError:
    message = f"The request's body is nested deeper than {MOST_LEVELS} levels."
    return GatewayError(400, "invalid_json", message)


def _parse(body: bytes) -> Any:
    if not body:
        raise GatewayError(400, "invalid_json", "The request has no body; send a JSON object.")
    if is_deeper(body, MOST_LEVELS):
        raise _too_deep()
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"The request's body is not JSON: {error.msg} at {where}."
        raise GatewayError(400, "invalid_json", message) from error
    except RecursionError as error:
        # In UTF-16 or UTF-32, which the parser takes as well, brackets in strings can hide others.
        raise _too_deep() from error
    except ValueError as error:
        message = f"The request's body is not JSON that can be read ({type(error).__name__})."
        raise GatewayError(400, "invalid_json", message) from error


def _model_of(value: Any) -> str:
    if not isinstance(value, dict):
        raise GatewayError(400, "invalid_type", "The request's body must be a JSON object.")
    model = value.get("model")
    if model is None:
        message = "You must give a model parameter; GET /v1/models lists what there is."
        raise GatewayError(400, "missing_required_parameter", message, param="model")
    if not isinstance(model, str) or not 0 < len(model) <= _MAX_MODEL_CHARACTERS:
        message = f"The model parameter must be a string of 1 to {_MAX_MODEL_CHARACTERS} characters."
        raise GatewayError(400, "invalid_type", message, param="model")
    return model
