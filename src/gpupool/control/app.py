"""The ASGI application of control: the routes within their border."""

from functools import partial

from fastapi import FastAPI

from gpupool import __version__
from gpupool.control.alerts.desk import AlertDesk
from gpupool.control.alerts.metrics import DeskMetrics
from gpupool.control.authorising import authorised
from gpupool.control.http.boundary import Boundary
from gpupool.control.http.guard import Guard, Tokens
from gpupool.control.http.hotkey_signatures import HotkeySignatures
from gpupool.control.http.limits import BODY_SECONDS, BodyLimits
from gpupool.control.http.metrics import Metrics
from gpupool.control.http.openapi import ControlApi, operation_id
from gpupool.control.http.problems import add_problem_handlers
from gpupool.control.inviting import check_minted
from gpupool.control.node_lines import NodeLines
from gpupool.control.pool import Pool
from gpupool.control.routes import (
    agent,
    alerts,
    health,
    hotkeys,
    join_tokens,
    miner,
    news,
    nodes,
    placements,
    purges,
    workloads,
)
from gpupool.control.routes import tokens as api_tokens
from gpupool.control.routes.agent_door import AgentDoor


def build_app(
    pool: Pool, tokens: Tokens, body_seconds: float = BODY_SECONDS, desk: AlertDesk | None = None
) -> FastAPI:
    """Return the application that serves ``pool``; a request's body may take ``body_seconds``.

    ``desk``: shows its alarms; left out, there is one that looks at nothing.
    """
    app = ControlApi(
        title="gpupool control",
        version=__version__,
        description="Nodes, devices, workloads, placements, events, and the endpoints feed of one pool of GPUs.",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
    )
    app.state.pool = pool
    app.state.metrics = Metrics()
    app.state.node_lines = NodeLines()
    app.state.alerts = desk or AlertDesk(pool)
    app.state.metrics.registry.register(DeskMetrics(app.state.alerts))
    for module in (
        health,
        nodes,
        join_tokens,
        api_tokens,
        hotkeys,
        workloads,
        placements,
        purges,
        news,
        alerts,
        agent,
        miner,
    ):
        app.include_router(module.router)
    add_problem_handlers(app)
    # The layer added last is the outermost: head limits and errors, then credentials, the body, and signatures over it.
    app.add_middleware(HotkeySignatures, pool=pool)
    app.add_middleware(BodyLimits, seconds=body_seconds)
    app.add_middleware(
        Guard,
        tokens=tokens,
        check_minted=partial(check_minted, pool),
        authorise=partial(authorised, pool),
        pool=pool,
    )
    app.add_middleware(Boundary, metrics=app.state.metrics)
    app.door = AgentDoor(pool, app.state.metrics, body_seconds)
    return app
