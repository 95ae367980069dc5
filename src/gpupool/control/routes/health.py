"""Whether this process lives, whether it can work, and what it measures."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from gpupool import __version__
from gpupool.contracts.control import Health
from gpupool.control.http.metrics import Metrics
from gpupool.control.routes.paging import PoolHere, answer
from gpupool.core.errors import UnavailableError

router = APIRouter(tags=["process"])


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


@router.get("/healthz", response_model=Health)
async def healthz(pool: PoolHere) -> Response:
    """Say that the process lives, and which one it is."""
    return answer(Health(role="control", instance_id=pool.instance_id, version=__version__))


@router.get("/readyz", response_model=Health)
async def readyz(pool: PoolHere) -> Response:
    """Say that requests are served: the database answers and the process is not ending."""
    if pool.changes.closed:
        raise UnavailableError("Control is stopping.")
    async with pool.store.read() as reader:
        await reader.last_event_seq()
    return answer(Health(role="control", instance_id=pool.instance_id, version=__version__))


@router.get("/metrics", response_class=Response)
async def metrics(pool: PoolHere, measured: Annotated[Metrics, Depends(_metrics)]) -> Response:
    """Return the metrics in Prometheus' text format."""
    return Response(measured.render(await pool.snapshot()), media_type=CONTENT_TYPE_PLAIN_0_0_4)
