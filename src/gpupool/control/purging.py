"""Purging: deployments end as if told to move, so that each is placed anew, wherever it is best now.

What is wanted stays. A placement that is ending already is left alone, and jobs end only where a person names their node
or themselves: a broken job costs what it has earned so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpupool.contracts.purging import PurgedView, PurgeRequest
from gpupool.control.pool import Change
from gpupool.control.recording import drain
from gpupool.control.tending import find_member
from gpupool.core.errors import ConflictError, NotFoundError
from gpupool.fleet.claims import ClaimMode
from gpupool.fleet.jobs import Job, JobState
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.ports.store import Reader
from gpupool.fleet.workloads import WorkloadKind

_EVERY: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Chosen:
    placements: Sequence[Placement]
    also_recompute: bool = False
    also_jobs: bool = True


async def purge(change: Change, request: PurgeRequest) -> list[PurgedView]:
    """End what is asked for and return it; nothing happens twice.

    Raises NotFoundError where the node or deployment is not known, ConflictError for a deployment that has ended.
    """
    chosen = await _chosen(change, request)
    busy = (
        frozenset[str]()
        if chosen.also_jobs
        else {job.placement_id for job in await running_jobs(change.writer)}
    )
    nodes = {node.id: node.name for node in await change.writer.nodes()}
    workloads = {workload.id: workload for workload in await change.writer.workloads(deleted=True)}
    purged: list[PurgedView] = []
    for placement in chosen.placements:
        workload = workloads.get(placement.workload_id)
        if workload is None or placement.state is PlacementState.DRAINING or placement.id in busy:
            continue
        if workload.spec.kind is not WorkloadKind.CHUTE and not chosen.also_recompute:
            continue
        held = await change.writer.claims(placement_id=placement.id)
        await drain(change, placement, workload, "purged")
        purged.append(
            PurgedView(
                deployment_id=placement.id,
                chute_id=workload.id,
                chute=workload.name,
                node_id=placement.node_id,
                node=nodes[placement.node_id],
                gpus=sum(claim.mode is ClaimMode.EXCLUSIVE for claim in held),
            )
        )
    return purged


async def running_jobs(reader: Reader, node_id: str | None = None) -> list[Job]:
    """Return the jobs that run, in the pool or on one node."""
    found = [job for job in await reader.jobs() if job.state is JobState.RUNNING]
    if node_id is None:
        return found
    here = {placement.id for placement in await reader.placements(node_id=node_id, live=True, limit=_EVERY)}
    return [job for job in found if job.placement_id in here]


async def _chosen(change: Change, request: PurgeRequest) -> _Chosen:
    if request.deployment is not None:
        return _Chosen([await _live(change, request.deployment)], also_recompute=True)
    if request.node is None:
        everything = await change.writer.placements(live=True, limit=_EVERY)
        return _Chosen(everything, also_jobs=False)
    node = await find_member(change, request.node)
    return _Chosen(await change.writer.placements(node_id=node.id, live=True, limit=_EVERY))


async def _live(change: Change, placement_id: str) -> Placement:
    found = await change.writer.placement(placement_id)
    if found is None:
        raise NotFoundError(
            f"There is no deployment {placement_id[:100]!r}.", remedy="See `gpupool deployment list`."
        )
    if not found.live:
        raise ConflictError(
            f"The deployment {found.id} is {found.state.value} already.",
            remedy="See `gpupool deployment list` for those that run.",
        )
    return found
