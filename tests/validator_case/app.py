"""The validator's own routers behind one application, as its main module mounts them, without what needs a GPU or the SDK.

Runs in the validator's environment (see `tests/validator_counterparts.py`); nothing of the validator is copied here. Its
rule that a node's host is public is the one thing set aside: everything here is on loopback.
"""

import hashlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

SOURCE = os.environ["CHUTES_API_SRC"]
sys.path.insert(0, SOURCE)
os.chdir(SOURCE)

util = import_module("api.util")


async def _any_host(_: str) -> bool:
    return True


setattr(util, "is_valid_host", _any_host)  # noqa: B010 - a module that only its own environment has
import_module("api.database.orms")
database = import_module("api.database")
fastapi = import_module("fastapi")
responses = import_module("fastapi.responses")


@asynccontextmanager
async def _tables(_: Any) -> AsyncIterator[None]:
    async with database.engine.begin() as connection:
        await connection.run_sync(database.Base.metadata.create_all)
    yield


app = fastapi.FastAPI(default_response_class=responses.ORJSONResponse, lifespan=_tables)
for module, prefix in (
    ("node", "/nodes"),
    ("miner", "/miner"),
    ("instance", "/instances"),
    ("job", "/jobs"),
    ("bounty", "/bounties"),
    ("registry", "/registry"),
    ("audit", "/audit"),
):
    app.include_router(import_module(f"api.{module}.router").router, prefix=prefix)


async def _with_body_hash(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    with_body = request.method in {"POST", "PUT", "PATCH"}
    request.state.body_sha256 = hashlib.sha256(await request.body()).hexdigest() if with_body else None
    return await call_next(request)


app.middleware("http")(_with_body_hash)
