"""The market process from start to end: state folder, books, server, and a clean way out."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import uvicorn

from gpupool.core.clock import SystemClock
from gpupool.core.errors import ConflictError
from gpupool.core.home import Home
from gpupool.core.ids import new_id
from gpupool.core.listening import BACKLOG, bind, stop_signal
from gpupool.core.locking import held_alone
from gpupool.core.logging import set_up_logging
from gpupool.core.processes import identify_self
from gpupool.core.records import ProcessRecord
from gpupool.core.tokens import load_or_make_token
from gpupool.market.broadcasting import Broadcaster
from gpupool.market.declared import DeclaredGpus
from gpupool.market.http.app import build_app
from gpupool.market.http.identity import Identity
from gpupool.market.keeping import Books
from gpupool.market.launching import Issuer
from gpupool.market.metering import Meter
from gpupool.market.settings import MarketSettings
from gpupool.market.state import Market
from gpupool.market.tending import Tender

ROLE: Final = "market"
GRACE_SECONDS: Final = 3
_LOG: Final = structlog.get_logger(__name__)


def run(settings: MarketSettings) -> None:
    """Serve until SIGTERM or SIGINT; raise PortTakenError, StorageError and the like before anything is served."""
    set_up_logging(ROLE, settings.log_level)
    home = settings.folders.prepare()
    with (
        alone(home),
        bind("the market", settings.market_host, settings.market_port, "GPUPOOL_MARKET") as listener,
    ):
        asyncio.run(_serve(settings, home, listener))


@contextmanager
def alone(home: Home) -> Iterator[None]:
    """Hold the market's books; ConflictError where another market does."""

    def taken() -> ConflictError:
        return ConflictError(
            f"Another market runs from the state folder {home.root}.",
            remedy="Stop it first, or give another state folder with GPUPOOL_HOME.",
        )

    with held_alone(home.run / "market.lock", taken):
        yield


async def _serve(settings: MarketSettings, home: Home, listener: socket.socket) -> None:
    record = ProcessRecord(
        role=ROLE,
        instance_id=settings.instance_id or new_id("inst"),
        process=identify_self(),
        host=settings.market_host,
        port=listener.getsockname()[1],
    )
    url = settings.market_url or record.url or ""
    books = Books(home.data / "market.db")
    market = Market(books, SystemClock())
    try:
        await market.load()
        identity = Identity(
            load_or_make_token(home.operator_token), settings.miners, lambda: SystemClock().now().timestamp()
        )
        issuer = Issuer(load_or_make_token(home.keys / "market.secret"), url)
        checks, meter = DeclaredGpus(), Meter(market)
        app = build_app(market, identity, issuer, meter, verifier=checks, proof=checks, url=url)
        news = Broadcaster(market, identity)
        server = uvicorn.Server(
            uvicorn.Config(
                news.around(app),
                ws="wsproto",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        app.state.miner.begin_pending()
        workers = [asyncio.create_task(news.run()), asyncio.create_task(Tender(market, meter, checks).run())]
        path = record.write(home.run)
        _LOG.info("market.listening", url=record.url)
        try:
            await _until_told(server, listener, workers)
        finally:
            path.unlink(missing_ok=True)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    finally:
        await books.close()
    _LOG.info("market.stopped")


async def _until_told(
    server: uvicorn.Server, listener: socket.socket, workers: "list[asyncio.Task[None]]"
) -> None:
    """Serve until a signal comes; a worker that dies ends the market, with what it died of."""
    stop = stop_signal()
    serving = asyncio.create_task(server._serve([listener]))  # noqa: SLF001 - `serve` would take the signals over
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping, *workers}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving
    for worker in workers:
        if worker.done():
            worker.result()
