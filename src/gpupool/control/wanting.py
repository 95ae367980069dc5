"""What people want: workloads made, changed, scaled and deleted. The reconciler does the rest."""

from dataclasses import replace
from typing import Final

from gpupool.catalog import Catalog
from gpupool.contracts.spec import SpecFile, check_sense
from gpupool.control.pool import Change
from gpupool.core.errors import InvalidInputError, LimitReachedError, NotFoundError
from gpupool.core.ids import new_id
from gpupool.core.secret_names import HIDDEN, is_secret_name
from gpupool.fleet.workloads import Workload, WorkloadSpec

MAX_WORKLOADS: Final = 10_000
"""Workloads that are wanted at a time."""


def check_models(spec: WorkloadSpec, catalog: Catalog) -> None:
    """Raise InvalidInputError, with near names, where the spec names a GPU model that the catalog lacks."""
    for model in sorted(spec.selector.include | spec.selector.exclude):
        try:
            catalog.get(model)
        except NotFoundError as error:
            raise InvalidInputError(error.message, remedy=error.remedy) from error


async def deploy(change: Change, file: SpecFile, catalog: Catalog) -> tuple[Workload, bool, bool]:
    """Want a workload as in ``file``; return it, whether it is new, and whether anything changed.

    A changed spec gets the next version; a changed number of replicas does not. Deploying the same again ends a
    back-off: the person asks for a try now. A secret that comes hidden, as the API shows it, keeps its value.
    """
    check_sense(file)
    spec = file.to_spec()
    check_models(spec, catalog)
    old = await change.writer.workload_by_name(spec.name)
    spec = _with_secrets(spec, old.spec if old else None)
    if old is None:
        if len(await change.writer.workloads()) >= MAX_WORKLOADS:
            raise LimitReachedError(f"The pool has {MAX_WORKLOADS} workloads, and takes no more.")
        workload = Workload(id=new_id("wl"), version=1, spec=spec, wanted=file.replicas, created_at=change.at)
        await change.writer.put_workload(workload)
        await change.emit("workload.created", workload.id, workload=spec.name, wanted=file.replicas)
        return workload, True, True
    fresh = replace(old, spec=spec, wanted=file.replicas, failures=0, not_before=None)
    if fresh == old:
        return old, False, False
    changed_spec = spec != old.spec
    if changed_spec:
        fresh = replace(fresh, version=old.version + 1)
    await change.writer.put_workload(fresh)
    changed = changed_spec or fresh.wanted != old.wanted
    kind = "workload.changed" if changed else "workload.retried"
    await change.emit(kind, fresh.id, workload=spec.name, version=fresh.version, wanted=fresh.wanted)
    return fresh, False, changed


def _with_secrets(spec: WorkloadSpec, old: WorkloadSpec | None) -> WorkloadSpec:
    """Return the spec with hidden secrets as they are in ``old``; raise InvalidInputError where they are not there."""
    hidden = [name for name, value in spec.env.items() if value == HIDDEN and is_secret_name(name)]
    kept = old.env if old else {}
    unknown = [name for name in hidden if name not in kept]
    if unknown:
        raise InvalidInputError(
            f"The value of {', '.join(unknown)} is {HIDDEN}, which stands for a hidden one, and there is none.",
            remedy="Give the value itself.",
        )
    return replace(spec, env={**spec.env, **{name: kept[name] for name in hidden}}) if hidden else spec


async def scale(change: Change, workload: Workload, wanted: int) -> Workload:
    """Want so many instances (>= 0) of a workload."""
    if wanted == workload.wanted:
        return workload
    scaled = replace(workload, wanted=wanted)
    await change.writer.put_workload(scaled)
    await change.emit("workload.scaled", workload.id, workload=workload.name, wanted=wanted)
    return scaled


async def delete(change: Change, workload: Workload) -> None:
    """Want a workload no more: its placements end, its name is free at once, what its variables held is forgotten."""
    if workload.deleted:
        return
    bare = replace(workload.spec, env={})
    await change.writer.put_workload(replace(workload, spec=bare, deleted=True, why=None, not_before=None))
    await change.emit("workload.deleted", workload.id, workload=workload.name)
