"""The first strategy: the cheapest able node, and on it the tightest fit.

Price first, because an idle dear card can still be sold. Then the least memory wasted, then the node that is left
with the fewest free GPUs, so that whole nodes stay whole for workloads that need many. Ties go to the lower id, so
that the same fleet always gives the same answer.

A device's price is the catalog's; outside the catalog its share of what the node costs; else 0, since nobody else
would pay for it.
"""

from collections.abc import Collection, Sequence

from gpupool.fleet.claims import ClaimMode
from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.workloads import WorkloadSpec
from gpupool.scheduling.port import Candidate, Decision, FleetView, Refusal
from gpupool.scheduling.rules import claim_of, device_refusals, node_refusals, spec_refusals

Score = tuple[int, int, int, str, tuple[str, ...]]
"""Millionths of a USD an hour, MiB left over, GPUs left free, node id, device ids: the least one wins."""


class CheapestFit:
    """Cheapest able node, best fit."""

    def __init__(self, known_models: Collection[str]) -> None:
        self._known_models = known_models

    def place(self, spec: WorkloadSpec, fleet: FleetView) -> Decision:
        """Return the cheapest node and devices that pass every rule, or the refusals of all of them."""
        refusals = list(spec_refusals(spec, self._known_models))
        if refusals:
            return Decision(refusals=tuple(refusals))
        if not fleet.candidates:
            return Decision(refusals=(Refusal("fleet", "empty", "no node has joined the pool"),))
        if spec.selector.gpu_count and not _has_gpu(fleet):
            refusals.append(Refusal("fleet", "no_gpu", "this pool has no GPU"))
        best: tuple[Score, Candidate, tuple[Device, ...]] | None = None
        for candidate in fleet.candidates:
            found = _on_node(spec, candidate, refusals)
            if found and (best is None or score(spec, candidate, found) < best[0]):
                best = (score(spec, candidate, found), candidate, found)
        if best is None:
            return Decision(refusals=tuple(refusals))
        mode, mib = claim_of(spec)
        return Decision(
            node_id=best[1].node.id,
            device_ids=tuple(device.id for device in best[2]),
            mode=mode,
            mib=mib,
            hourly_usd=best[0][0] / 1e6,
            refusals=tuple(refusals),
        )


def _has_gpu(fleet: FleetView) -> bool:
    """Tell whether any node has shown a GPU, be it absent now."""
    return any(
        device.kind is DeviceKind.GPU for candidate in fleet.candidates for device in candidate.devices
    )


def _on_node(spec: WorkloadSpec, candidate: Candidate, refusals: list[Refusal]) -> tuple[Device, ...] | None:
    """Return the best devices of one node, or None after adding to ``refusals``."""
    of_node = list(node_refusals(spec, candidate))
    able: list[Device] = []
    for device in candidate.devices:
        of_device = list(device_refusals(spec, candidate, device))
        refusals.extend(of_device)
        if not of_device:
            able.append(device)
    needed = spec.selector.gpu_count or 1
    if spec.selector.gpu_count and len(able) < needed:
        detail = f"{candidate.node.name} has {len(able)} fitting free GPUs, {needed} are asked"
        of_node.append(Refusal(candidate.node.id, "gpu_count", detail))
    elif not able:
        detail = f"{candidate.node.name} has no cpu device with room"
        of_node.append(Refusal(candidate.node.id, "cpu", detail))
    refusals.extend(of_node)
    if of_node:
        return None
    able.sort(key=lambda device: (price(candidate, device), _leftover(spec, candidate, device), device.id))
    return tuple(able[:needed])


def score(spec: WorkloadSpec, candidate: Candidate, devices: Sequence[Device]) -> Score:
    """Return the rank of a choice; the least score is the best choice."""
    return (
        sum(price(candidate, device) for device in devices),
        sum(_leftover(spec, candidate, device) for device in devices),
        _free_gpus(candidate) - (len(devices) if spec.selector.gpu_count else 0),
        candidate.node.id,
        tuple(sorted(device.id for device in devices)),
    )


def price(candidate: Candidate, device: Device) -> int:
    """Return what holding a device costs, in millionths of a USD an hour."""
    if device.hourly_usd is not None:
        return round(device.hourly_usd * 1e6)
    if candidate.node.hourly_usd is None:
        return 0
    gpus = sum(other.kind is DeviceKind.GPU and other.present for other in candidate.devices)
    return round(candidate.node.hourly_usd * 1e6 / max(1, gpus))


def _leftover(spec: WorkloadSpec, candidate: Candidate, device: Device) -> int:
    mode, mib = claim_of(spec)
    if mode is ClaimMode.EXCLUSIVE:
        return device.memory_mib - spec.selector.min_vram_mib
    return device.memory_mib - sum(claim.mib for claim in candidate.held(device.id)) - mib


def _free_gpus(candidate: Candidate) -> int:
    taken = {claim.device_id for claim in candidate.claims}
    return sum(
        device.kind is DeviceKind.GPU and device.present and device.id not in taken
        for device in candidate.devices
    )
