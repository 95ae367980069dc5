"""Workloads: what is wanted, and why it is not there."""

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.contracts.control import (
    DeployReply,
    DeployRequest,
    RefusalView,
    ScaleRequest,
    WhyView,
    WorkloadView,
)
from gpupool.control import wanting
from gpupool.control.pool import Change, Pool
from gpupool.control.routes.paging import By, Cursor, Limit, PoolHere, answer, page
from gpupool.control.views import workload_views
from gpupool.core.errors import NotFoundError
from gpupool.fleet.workloads import Workload

router = APIRouter(prefix="/v1/workloads", tags=["workloads"])


@router.post("", response_model=DeployReply, responses={201: {"model": DeployReply}})
async def deploy(pool: PoolHere, by: By, request: DeployRequest) -> Response:
    """Want a workload: make it, or change the one of that name."""
    async with pool.change(by) as change:
        workload, created, changed = await wanting.deploy(change, request.spec, pool.catalog)
    view = await _view(pool, workload.id)
    return answer(DeployReply(workload=view, created=created, changed=changed), 201 if created else 200)


@router.get("", response_model=list[WorkloadView])
async def list_workloads(pool: PoolHere, cursor: Cursor = None, limit: Limit = 1000) -> Response:
    """List the workloads that are wanted, oldest first."""

    async def build() -> Response:
        snapshot = await pool.snapshot()
        views = workload_views(snapshot, snapshot.wanted_workloads())
        return page(views, cursor, limit, lambda workload: workload.id)

    return await pool.answers.get(f"workloads {cursor} {limit}", build)


@router.get("/{workload}", response_model=WorkloadView)
async def show_workload(pool: PoolHere, workload: str) -> Response:
    """Show a workload by name or id; by id also a deleted one."""
    return answer(await _view(pool, workload))


@router.delete("/{workload}", status_code=204, response_class=Response)
async def delete_workload(pool: PoolHere, by: By, workload: str) -> Response:
    """Want a workload no more: its placements end, its name is free at once."""
    async with pool.change(by) as change:
        await wanting.delete(change, await _wanted(change, workload))
    return Response(status_code=204)


@router.post("/{workload}/scale", response_model=WorkloadView)
async def scale_workload(pool: PoolHere, by: By, workload: str, request: ScaleRequest) -> Response:
    """Want so many instances of a workload."""
    async with pool.change(by) as change:
        scaled = await wanting.scale(change, await _wanted(change, workload), request.wanted)
    return answer(await _view(pool, scaled.id))


@router.get("/{workload}/why", response_model=WhyView)
async def why_workload(pool: PoolHere, workload: str) -> Response:
    """Say what each node and device refuses now, and where another instance would go."""
    snapshot = await pool.snapshot()
    found = snapshot.find_workload(workload)
    if found is None:
        raise _not_found(workload)
    decision = pool.strategy.place(found.spec, snapshot.fleet())
    view = WhyView(
        workload=found.name,
        why=found.why,
        not_before=found.not_before,
        would_go_to=decision.node_id,
        refusals=[
            RefusalView(subject=refusal.subject, rule=refusal.rule, detail=refusal.detail)
            for refusal in decision.refusals
        ],
    )
    return answer(view)


def _not_found(workload: str) -> NotFoundError:
    return NotFoundError(f"There is no workload {workload[:100]!r}.", remedy="See `gpupool chute list`.")


async def _view(pool: Pool, name_or_id: str) -> WorkloadView:
    snapshot = await pool.snapshot()
    found = snapshot.find_workload(name_or_id)
    if found is None:
        raise _not_found(name_or_id)
    return workload_views(snapshot, [found])[0]


async def _wanted(change: Change, name_or_id: str) -> Workload:
    """Return the workload of that name or id that is still wanted; raise NotFoundError where there is none."""
    by_id = await change.writer.workload(name_or_id)
    found = by_id if by_id and not by_id.deleted else await change.writer.workload_by_name(name_or_id)
    if found is None:
        raise _not_found(name_or_id)
    return found
