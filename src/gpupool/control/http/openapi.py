"""The published description of the API: what FastAPI derives, with our errors and the agent link's bodies in it."""

from typing import Any, Final, Protocol

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from gpupool.contracts.agent_link import Command, Report
from gpupool.contracts.problems import MEDIA_TYPE, Problem
from gpupool.control.authorising import is_miner_path
from gpupool.validators.chutes.signing import SIGNATURE

_REFERENCE: Final = "#/components/schemas/{model}"
_SIGNED: Final[dict[str, dict[str, str | None]]] = {
    "/v1/agent/reports": {"application/json": "Report"},
    "/v1/agent/logs/{request_id}": {"text/plain": None},
}


def operation_id(route: APIRoute) -> str:
    """Return the operation's stable id: the name of its function."""
    return route.name


class Door(Protocol):
    """An ASGI application for some requests."""

    def fits(self, scope: Scope) -> bool:
        """Tell whether a request is for it."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        ...


class ControlApi(FastAPI):
    """An application that describes itself with `describe_api`, and has a door beside it for what it is asked most."""

    door: "Door | None" = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, through the door where it fits."""
        if scope["type"] == "http" and self.door is not None and self.door.fits(scope):
            await self.door(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the description, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = describe_api(self)
        return self.openapi_schema


def describe_api(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of ``app``."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    _, ours = models_json_schema(
        [(Problem, "serialization"), (Report, "validation"), (Command, "serialization")],
        ref_template=_REFERENCE,
    )
    components = document.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **ours["$defs"]}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "joinToken": {"type": "http", "scheme": "bearer"},
        "hotkey": {"type": "apiKey", "in": "header", "name": SIGNATURE},
        "signature": {"type": "apiKey", "in": "header", "name": "X-Gpupool-Signature"},
    }
    problem = {"content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {"description": "What went wrong.", **problem}
            operation["security"] = _security(path)
            if path in _SIGNED:
                operation["requestBody"] = {"required": True, "content": _content(_SIGNED[path])}
    return document


def _security(path: str) -> list[dict[str, list[str]]]:
    if path == "/v1/agent/join":
        return [{"joinToken": []}, {"signature": []}]
    if path.startswith("/v1/agent/"):
        return [{"signature": []}]
    if is_miner_path(path):
        return [{"hotkey": []}, {"token": []}]
    return [{"token": []}] if path.startswith("/v1/") else []


def _content(bodies: dict[str, str | None]) -> dict[str, Any]:
    return {
        media: {"schema": {"$ref": _REFERENCE.format(model=model)} if model else {"type": "string"}}
        for media, model in bodies.items()
    }
