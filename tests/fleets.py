"""Small fleets for scheduling tests: hand-made ones, and hypothesis strategies that make every kind."""

from typing import Any

from hypothesis import strategies as st

from fleet_samples import a_device, a_node, a_spec
from gpupool.fleet.claims import Claim, ClaimMode, refusal
from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.workloads import Selector, WorkloadSpec
from gpupool.scheduling.port import Candidate, FleetView

MODELS = ("a10", "h100", "l4")
PRICES = {"a10": 0.4, "h100": 2.5, "l4": 0.3, None: None}


def machine(name: str, *devices: Device, claims: tuple[Claim, ...] = (), **node: Any) -> Candidate:
    """Return a ready node called ``name`` with these devices."""
    values = {"id": name, "name": name, "state": NodeState.READY, **node}
    ports = values.pop("ports", frozenset())
    return Candidate(node=a_node(**values), devices=devices, claims=claims, ports=ports)


def gpu(name: str, model: str | None = "l4", mib: int = 24_576, **changes: Any) -> Device:
    """Return a GPU with its catalog price."""
    values = {"id": name, "short_ref": model, "memory_mib": mib, "hourly_usd": PRICES[model]}
    return a_device("any", **{**values, **changes})


def cpu(name: str, mib: int = 8192, **changes: Any) -> Device:
    """Return a cpu device."""
    return a_device("any", id=name, kind=DeviceKind.CPU, memory_mib=mib, **changes)


def whole(device: Device) -> Claim:
    """Return somebody's exclusive claim."""
    return Claim(
        placement_id="pl-other", device_id=device.id, mode=ClaimMode.EXCLUSIVE, mib=device.memory_mib
    )


def part(device: Device, mib: int) -> Claim:
    """Return somebody's shared claim."""
    return Claim(placement_id="pl-other", device_id=device.id, mode=ClaimMode.SHARED, mib=mib)


@st.composite
def candidates(draw: st.DrawFn, name: str) -> Candidate:
    """Make a node in any state with up to four GPUs and perhaps a cpu device, partly claimed."""
    devices = [
        gpu(
            f"{name}-{index}",
            draw(st.sampled_from((*MODELS, None))),
            draw(st.sampled_from((8192, 24_576, 81_920))),
            present=draw(st.booleans()),
            index=index,
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    if draw(st.booleans()):
        devices.append(cpu(f"{name}-cpu", draw(st.sampled_from((1024, 8192)))))
    claims = []
    for device in devices:
        if device.kind is DeviceKind.GPU and draw(st.integers(0, 3)) == 0:
            claims.append(whole(device))
        elif draw(st.integers(0, 3)) == 0:
            claims.append(part(device, draw(st.integers(1, device.memory_mib))))
    return machine(
        name,
        *devices,
        claims=tuple(claims),
        state=draw(st.sampled_from((NodeState.READY, NodeState.READY, NodeState.UNREACHABLE))),
        locked=draw(st.integers(0, 5)) == 0,
        hourly_usd=draw(st.sampled_from((None, 0.1, 1.0))),
        ports=frozenset(draw(st.sets(st.sampled_from((30001, 30002))))),
    )


@st.composite
def fleets(draw: st.DrawFn) -> FleetView:
    """Make a fleet of up to four nodes."""
    names = [f"node-{number}" for number in range(draw(st.integers(0, 4)))]
    return FleetView(candidates=tuple(draw(candidates(name)) for name in names))


@st.composite
def specs(draw: st.DrawFn) -> WorkloadSpec:
    """Make a spec that some fleets can take."""
    count = draw(st.integers(0, 3))
    selector = Selector(
        gpu_count=count,
        min_vram_mib=draw(st.sampled_from((0, 8192, 24_576))),
        include=frozenset(draw(st.sets(st.sampled_from(MODELS), max_size=2))),
        exclude=frozenset(draw(st.sets(st.sampled_from(MODELS), max_size=1))),
        max_hourly_usd=draw(st.sampled_from((None, None, 0.35, 1.0))),
    )
    return a_spec(
        name="asked",
        selector=selector,
        private=count == 0 or draw(st.booleans()),
        memory_mib=draw(st.sampled_from((512, 4096))),
        port=draw(st.sampled_from((None, 30001))),
    )


def takes(spec: WorkloadSpec, candidate: Candidate, device: Device) -> bool:
    """Tell, written out anew, whether a device may be chosen; the oracle of the property tests."""
    selector = spec.selector
    held = [claim for claim in candidate.claims if claim.device_id == device.id]
    if not device.present:
        return False
    if selector.gpu_count == 0:
        return device.kind is DeviceKind.CPU and not refusal(device, held, ClaimMode.SHARED, spec.memory_mib)
    price_fits = selector.max_hourly_usd is None or (
        device.hourly_usd is not None and device.hourly_usd <= selector.max_hourly_usd
    )
    return (
        device.kind is DeviceKind.GPU
        and not held
        and device.memory_mib >= selector.min_vram_mib
        and (not selector.include or device.short_ref in selector.include)
        and device.short_ref not in selector.exclude
        and price_fits
        and (spec.private or device.short_ref is not None)
    )
