"""The environment of workloads on its way into the database and out of it: sealed inside, clear outside.

It stands in two places there: in the spec of a workload, and in a start order that its node has not acknowledged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpupool.core.sealing import Seal
from gpupool.fleet.workloads import Workload


@dataclass(frozen=True, slots=True)
class Sealing:
    """Seals with ``seal``; without one everything passes as it is."""

    seal: Seal | None = None

    def close_workload(self, workload: Workload) -> Workload:
        """Return the workload as it is kept."""
        return workload if self.seal is None else _with_env(workload, self.seal.close)

    def open_workload(self, workload: Workload) -> Workload:
        """Return a kept workload as it was given; raise StorageError where it was sealed with another key."""
        if self.seal is None:
            return workload
        if workload.deleted:
            # Nothing starts it again: what it was given is nobody's need, and a lost key is no reason to stop for it.
            return replace(workload, spec=replace(workload.spec, env={}))
        return _with_env(workload, self.seal.open)

    def close_payload(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return a command's payload as it is kept."""
        return dict(payload) if self.seal is None else _with_values(payload, self.seal.close)

    def open_payload(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return a kept payload as it was given; raise StorageError where it was sealed with another key."""
        return dict(payload) if self.seal is None else _with_values(payload, self.seal.open)


def _with_env(workload: Workload, change: Callable[[str, str], str]) -> Workload:
    env = workload.spec.env
    if not env:
        return workload
    return replace(workload, spec=replace(workload.spec, env={name: change(name, env[name]) for name in env}))


def _with_values(payload: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    env = payload.get("env")
    if not isinstance(env, dict):
        return dict(payload)
    return {**payload, "env": {name: change(name, value) for name, value in env.items()}}
