"""The rules a node and its devices must pass, each under a stable name.

Rules are separate from the choice among what passes, so that every strategy refuses alike and every refusal can be
shown to the person who asks why nothing runs.
"""

from collections.abc import Collection, Iterator
from typing import Final

from gpupool.fleet.claims import ClaimMode, refusal
from gpupool.fleet.devices import Device, DeviceKind, ProofState
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.workloads import Selector, WorkloadSpec
from gpupool.scheduling.port import Candidate, Refusal

FLEET: Final = "fleet"


def claim_of(spec: WorkloadSpec) -> tuple[ClaimMode, int]:
    """Return how the workload holds a device, and how many MiB of it (0 = all of it)."""
    if spec.selector.gpu_count:
        return ClaimMode.EXCLUSIVE, 0
    return ClaimMode.SHARED, spec.memory_mib


def spec_refusals(spec: WorkloadSpec, known_models: Collection[str]) -> Iterator[Refusal]:
    """Yield what no fleet could satisfy: models the catalog does not have."""
    for field, models in (("include", spec.selector.include), ("exclude", spec.selector.exclude)):
        for model in sorted(models):
            if model not in known_models:
                yield Refusal(
                    FLEET, "unknown_model", f"{field} names {model}, which the catalog does not have"
                )


def node_refusals(spec: WorkloadSpec, candidate: Candidate) -> Iterator[Refusal]:
    """Yield the rules that the node itself does not pass, whatever its devices are."""
    node = candidate.node
    if node.state is not NodeState.READY:
        yield Refusal(node.id, "node_state", f"{node.name} is {node.state.value}, not ready")
    if node.locked:
        yield Refusal(node.id, "node_locked", f"{node.name} is locked by an operator")
    if node.draining:
        yield Refusal(node.id, "node_draining", f"{node.name} is draining")
    if spec.image is not None and not {"container", "kubernetes"}.intersection(node.runtimes):
        yield Refusal(
            node.id, "runtime", f"{node.name} has no container runtime and the workload is an image"
        )
    if spec.image is None and "process" not in node.runtimes:
        yield Refusal(node.id, "runtime", f"{node.name} runs no processes and the workload is a command")
    if spec.port is not None and spec.port in candidate.ports:
        yield Refusal(node.id, "port", f"port {spec.port} of {node.name} is used by another placement")


def device_refusals(spec: WorkloadSpec, candidate: Candidate, device: Device) -> Iterator[Refusal]:
    """Yield the rules that one device does not pass for this workload."""
    if not device.present:
        yield Refusal(device.id, "absent", f"{device.name} was not in the node's last inventory")
    wanted = DeviceKind.GPU if spec.selector.gpu_count else DeviceKind.CPU
    if device.kind is not wanted:
        yield Refusal(device.id, "kind", f"{device.name} is a {device.kind.value}, a {wanted.value} is asked")
        return
    if wanted is DeviceKind.GPU:
        yield from _selector_refusals(spec.selector, device)
        if not spec.private:
            yield from _market_refusals(device)
    mode, mib = claim_of(spec)
    reason = refusal(device, candidate.held(device.id), mode, mib)
    if reason is not None:
        yield Refusal(
            device.id, "memory" if mode is ClaimMode.SHARED else "claimed", f"{device.name}: {reason}"
        )


def _selector_refusals(selector: Selector, device: Device) -> Iterator[Refusal]:
    if device.memory_mib < selector.min_vram_mib:
        detail = f"{device.name} has {device.memory_mib} MiB, {selector.min_vram_mib} MiB are asked"
        yield Refusal(device.id, "min_vram", detail)
    model = device.short_ref or "not in the catalog"
    if selector.include and device.short_ref not in selector.include:
        yield Refusal(device.id, "include", f"{device.name} ({model}) is none of {_names(selector.include)}")
    if device.short_ref is not None and device.short_ref in selector.exclude:
        yield Refusal(device.id, "exclude", f"{device.name} ({model}) is excluded")
    if selector.max_hourly_usd is not None:
        limit = f"at most {selector.max_hourly_usd:g} USD an hour is asked"
        if device.hourly_usd is None:
            yield Refusal(device.id, "max_price", f"{device.name} has no known price, {limit}")
        elif device.hourly_usd > selector.max_hourly_usd:
            yield Refusal(device.id, "max_price", f"{device.name} costs {device.hourly_usd:g}, {limit}")


def _market_refusals(device: Device) -> Iterator[Refusal]:
    if device.stand_in:
        yield Refusal(device.id, "market", f"{device.name} stands in for a GPU: development mode only")
    elif device.short_ref is None:
        yield Refusal(device.id, "market", f"{device.name} is not in the catalog")
    if device.failed_rules:
        yield Refusal(device.id, "market", f"{device.name}: {device.failed_rules[0]}")
    if device.proof is ProofState.REFUTED:
        yield Refusal(device.id, "market", f"{device.name} failed its proof")


def _names(models: Collection[str]) -> str:
    return ", ".join(sorted(models))
