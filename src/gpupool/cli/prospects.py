"""Whether waiting can help: tells a workload that no node of this pool can ever take from one that must wait.

A busy card gets free and a node comes back; a node grows no container runtime, and no card becomes another model.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from gpupool.contracts.control import DeviceView, NodeView, RefusalView
from gpupool.contracts.spec import SpecFile
from gpupool.fleet.devices import DeviceKind

_OF_DEVICE: Final = frozenset({"kind", "min_vram", "include", "exclude", "max_price", "market"})
"""Rules that the same device refuses for ever."""
_OF_NODE: Final = frozenset({"runtime"})


def never(
    spec: SpecFile, nodes: Sequence[NodeView], devices: Sequence[DeviceView], refusals: Sequence[RefusalView]
) -> str | None:
    """Return why no node of the pool can ever take the workload, in words; None where one might.

    ``refusals``: those of now. A pool without nodes, or with one that has told no devices yet, may still take it.
    """
    if any(refusal.rule == "unknown_model" for refusal in refusals):
        return _told(refusals)
    rules: dict[str, set[str]] = defaultdict(set)
    for refusal in refusals:
        rules[refusal.subject].add(refusal.rule)
    if not nodes:
        return None
    for node in nodes:
        of_node = [device for device in devices if device.node_id == node.id]
        if not of_node:
            return None
        if rules[node.id] & _OF_NODE:
            continue
        able = [device for device in of_node if not _refuses(spec, device, rules[device.id])]
        if len(able) >= (spec.gpu_count or 1):
            return None
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    if spec.gpu_count and not gpus:
        return "this pool has no GPU"
    return _told([r for r in refusals if r.rule in _OF_NODE | (_OF_DEVICE - {"kind"})] or refusals)


def _refuses(spec: SpecFile, device: DeviceView, rules: set[str]) -> bool:
    return bool(rules & _OF_DEVICE) or (not spec.gpu_count and spec.memory_mb > device.memory_mib)


def _told(refusals: Sequence[RefusalView]) -> str:
    return "; ".join(list(dict.fromkeys(refusal.detail for refusal in refusals))[:3])
