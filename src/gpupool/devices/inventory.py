"""Everything this machine brings to the pool: each device with its catalog model and what it may be used for.

A card outside the catalog, or one that fails a single number, still earns: it takes private chutes and recompute.
So each use has its own yes or no, with the reason that an owner is told.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpupool.catalog import Catalog, GpuModel, RuleResult, failed_rules, undecided_rules
from gpupool.devices.probe import DeviceFacts, DeviceProbe

Use = Literal["market chutes", "private chutes", "recompute"]


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether a device may be used in one way, and why."""

    use: Use
    allowed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    """One device of this machine, judged."""

    facts: DeviceFacts
    recognised: GpuModel | None
    """The catalog row that the name matches (a stand-in: the row it stands in for), even where a number fails."""
    results: tuple[RuleResult, ...]
    """Every rule of the validator that was applied; none for the CPU and for stand-ins."""
    permissions: tuple[Permission, ...]

    @property
    def failed(self) -> tuple[RuleResult, ...]:
        """The rules that keep this card out of the validator's market."""
        return failed_rules(self.results)

    @property
    def undecided(self) -> tuple[RuleResult, ...]:
        """The rules left open since this machine could not measure the number."""
        return undecided_rules(self.results)

    @property
    def short_ref(self) -> str | None:
        """The catalog's short ref where the card counts as that model: recognised, and no rule failed."""
        return self.recognised.short_ref if self.recognised and not self.failed else None

    @property
    def hourly_usd(self) -> float | None:
        """The validator's price basis; None where the card doesn't count as a model."""
        return self.recognised.hourly_usd if self.recognised and not self.failed else None

    def may(self, use: Use) -> bool:
        """Tell whether the device may be used in this way."""
        return any(permission.use == use and permission.allowed for permission in self.permissions)


def default_probes() -> tuple[DeviceProbe, ...]:
    """Return the probes of a real machine: NVML, OpenCL, CPU."""
    from gpupool.devices.cpu import CpuProbe
    from gpupool.devices.nvml import NvmlProbe
    from gpupool.devices.opencl import OpenClProbe

    return NvmlProbe(), OpenClProbe(), CpuProbe()


def discover(
    catalog: Catalog | None = None, probes: Sequence[DeviceProbe] | None = None
) -> tuple[InventoryEntry, ...]:
    """Ask every probe, join the views of one card, and judge each device; the CPU comes last.

    Quick where there is no accelerator (milliseconds), but blocking: not for an event loop.
    """
    catalog = catalog or Catalog.load()
    probes = default_probes() if probes is None else probes
    devices = join(facts for probe in probes for facts in probe.devices())
    gpus = sum(not device.is_cpu and not device.stand_in for device in devices)
    entries = [judge(device, catalog, gpus) for device in devices]
    return tuple(sorted(entries, key=lambda entry: entry.facts.is_cpu))


def join(devices: Iterable[DeviceFacts]) -> tuple[DeviceFacts, ...]:
    """Merge two probes' views of one card (the same PCI address), keeping the first one's identity.

    The later view fills what the first left unknown, and its rated clock replaces a mere ceiling.
    """
    by_place: dict[str, DeviceFacts] = {}
    for device in devices:
        place = device.pci_address or device.uuid
        known = by_place.get(place)
        by_place[place] = device if known is None else _completed(known, device)
    return tuple(by_place.values())


def _completed(known: DeviceFacts, other: DeviceFacts) -> DeviceFacts:
    rated = other.clock_khz is not None and not other.clock_is_ceiling
    better = other if rated and (known.clock_khz is None or known.clock_is_ceiling) else known
    return replace(
        known,
        clock_khz=better.clock_khz,
        clock_is_ceiling=better.clock_is_ceiling,
        processors=other.processors if known.processors is None else known.processors,
        compute_capability=known.compute_capability or other.compute_capability,
        driver=known.driver or other.driver,
        ecc=other.ecc if known.ecc is None else known.ecc,
    )


def judge(
    facts: DeviceFacts, catalog: Catalog, gpus_on_server: int, port: int | None = None
) -> InventoryEntry:
    """Return a device with its catalog model, the outcome of the validator's rules, and its permissions.

    ``port``: the node's verification port; while it is None, that rule is not part of the outcome.
    """
    if facts.is_cpu:
        return InventoryEntry(facts, None, (), _CPU_PERMISSIONS)
    if facts.stand_in_for is not None:
        return InventoryEntry(facts, catalog.get(facts.stand_in_for), (), _STAND_IN_PERMISSIONS)
    outcome = catalog.validate(facts.measured(gpus_on_server, port))
    results = tuple(result for result in outcome if result.rule != "port" or port is not None)
    recognised = catalog.recognise(facts.name)
    return InventoryEntry(facts, recognised, results, _gpu_permissions(facts, recognised, results))


_CPU_PERMISSIONS = (
    Permission("market chutes", False, "a validator's chutes need a GPU"),
    Permission("private chutes", True, "chutes with gpu_count 0, shared"),
    Permission("recompute", True, "CPU recompute, shared"),
)
_STAND_IN_PERMISSIONS = (
    Permission("market chutes", False, "a CPU standing in for a GPU: development mode, embedded market only"),
    Permission("private chutes", True, "development mode: the CPU does the work"),
    Permission("recompute", False, "the node's cpu device does recompute"),
)


def _gpu_permissions(
    facts: DeviceFacts, model: GpuModel | None, results: tuple[RuleResult, ...]
) -> tuple[Permission, ...]:
    if facts.partitioned:
        reason = "MIG is on, so the card can't be held whole; switch it off with `nvidia-smi -mig 0`"
        uses: tuple[Use, ...] = ("market chutes", "private chutes", "recompute")
        return tuple(Permission(use, False, reason) for use in uses)
    return (
        _market_permission(model, results),
        Permission("private chutes", True, "any GPU"),
        Permission("recompute", True, "any GPU"),
    )


def _market_permission(model: GpuModel | None, results: tuple[RuleResult, ...]) -> Permission:
    failed, open_rules = failed_rules(results), undecided_rules(results)
    if failed or model is None:
        return Permission("market chutes", False, "; ".join(result.text for result in failed))
    if open_rules:
        reason = "; ".join(result.text for result in open_rules)
        return Permission("market chutes", True, f"counts as {model.display_name}, but {reason}")
    return Permission("market chutes", True, f"counts as {model.display_name}")
