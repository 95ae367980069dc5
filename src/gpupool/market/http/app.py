"""The market's HTTP application: what miners, instances and the market's owner ask, each under its own credential.

Source: chutes.md section 2.2. Errors leave as ``{"detail": "..."}``, which is what miners of this protocol read.
"""

import secrets
from typing import Any, Final

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpupool.core.errors import GpupoolError
from gpupool.market.http.identity import Identity
from gpupool.market.http.instance_routes import InstanceRoutes
from gpupool.market.http.miner_routes import MinerRoutes
from gpupool.market.http.owner_routes import OwnerRoutes
from gpupool.market.instances import LaunchProof
from gpupool.market.launching import Issuer
from gpupool.market.metering import Meter
from gpupool.market.refusing import RefusedError
from gpupool.market.registering import Verifier
from gpupool.market.state import Market

_LOG: Final = structlog.get_logger(__name__)


def build_app(
    market: Market,
    identity: Identity,
    issuer: Issuer,
    meter: Meter,
    *,
    verifier: Verifier,
    proof: LaunchProof,
    url: str,
) -> Starlette:
    """Return the application; ``url``: where miners and instances reach it."""
    miner = MinerRoutes(market, identity, issuer, meter, verifier)
    instance = InstanceRoutes(market, issuer, proof, url, lambda: secrets.token_hex(16))
    owner = OwnerRoutes(market, identity, meter)
    app = Starlette(
        routes=[
            Route("/ping", _pong),
            Route("/healthz", _pong),
            *miner.routes(),
            *instance.routes(),
            *owner.routes(),
        ],
        exception_handlers={
            GpupoolError: _refused,
            HTTPException: _http,
            ClientDisconnect: _left,
            Exception: _unforeseen,
        },
    )
    app.state.miner = miner
    return app


async def _pong(_: Request) -> Response:
    return JSONResponse({"message": "pong"})


async def _refused(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, GpupoolError) else GpupoolError()
    status = known.answer if isinstance(known, RefusedError) else known.status
    _LOG.info("refused", path=request.url.path, status=status, why=known.message)
    return _detail(status, known.message)


async def _http(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _detail(status, "Not Found" if status == 404 else "Method Not Allowed")


async def _left(_: Request, __: Exception) -> Response:
    return _detail(400, "The sender left.")


async def _unforeseen(request: Request, error: Exception) -> Response:
    _LOG.error("request.crashed", path=request.url.path, exc_info=error)
    return _detail(500, "The market failed on this request; its log says why.")


def _detail(status: int, words: str) -> Response:
    more: dict[str, Any] = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"detail": words}, status_code=status, headers=more)
