"""The rules by which a validator takes or refuses a card, with numbers an owner can act on.

A card that fails one rule still works for private chutes and recompute, so the outcome isn't yes or no but one
result a rule: what was measured, what is required, and a sentence such as "114 SMs, the catalog's RTX 4090 has
128". A number that this machine couldn't measure makes its rule undecided (None), never passed or failed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from gpupool.catalog.models import GpuModel

Rule = Literal[
    "name", "enabled", "memory_gb", "processors", "clock_mhz", "device_index", "max_gpus_per_server", "port"
]
_BYTES_PER_GB: Final = 1e9
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True, slots=True)
class RuleLimits:
    """The numbers in the rules, as the catalog file gives them."""

    memory_below_gb: int
    memory_factor: float
    memory_above_gb: int
    boost_factor: float
    device_index_below: int
    max_gpus_per_server: int
    lowest_port: int
    highest_port: int

    def memory_range(self, model: GpuModel) -> tuple[float, float]:
        """Return the accepted memory of a model in GB (10**9 bytes, cut to whole GB), both ends included."""
        return (
            model.memory_gb - self.memory_below_gb,
            model.memory_gb * self.memory_factor + self.memory_above_gb,
        )

    def clock_range(self, model: GpuModel) -> tuple[float, float]:
        """Return the accepted core clock of a model in MHz, both ends included."""
        return model.base_mhz, model.boost_mhz * self.boost_factor


@dataclass(frozen=True, slots=True)
class MeasuredCard:
    """What was measured of a card and its server; None is not measured."""

    name: str
    index: int
    memory_bytes: int
    processors: int | None = None
    clock_khz: int | None = None
    clock_is_ceiling: bool = False
    """True where the clock is the driver's highest step, which may lie above the rated clock validators read."""
    claimed_ref: str | None = None
    """The model that the card was registered as; None: whatever its name says."""
    gpus_on_server: int | None = None
    port: int | None = None
    """The port on which the node's verification service answers."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """How one rule came out."""

    rule: Rule
    passed: bool | None
    """None: undecided, since a number wasn't measured."""
    measured: str
    required: str
    text: str
    """One clause for people, such as ``114 SMs, the catalog's RTX 4090 has 128``."""


def failed_rules(results: Iterable[RuleResult]) -> tuple[RuleResult, ...]:
    """Return the results that failed."""
    return tuple(result for result in results if result.passed is False)


def undecided_rules(results: Iterable[RuleResult]) -> tuple[RuleResult, ...]:
    """Return the results that a missing measurement left open."""
    return tuple(result for result in results if result.passed is None)


def check(card: MeasuredCard, model: GpuModel | None, limits: RuleLimits) -> tuple[RuleResult, ...]:
    """Apply every rule to a card whose name was recognised as ``model`` (None: as no row).

    A card that no row recognises gets the rules that need no row.
    """
    results = [_name(card, model)]
    if model is not None:
        results += [
            _enabled(model),
            _memory(card, model, limits),
            _processors(card, model),
            _clock(card, model, limits),
        ]
    return (*results, _device_index(card, limits), _gpus_on_server(card, limits), _port(card, limits))


def _name(card: MeasuredCard, model: GpuModel | None) -> RuleResult:
    required = card.claimed_ref or "a row of the catalog"
    if model is None:
        return RuleResult("name", False, card.name, required, f"{card.name} is in no row of the catalog")
    if card.claimed_ref not in {None, model.short_ref}:
        text = f"{card.name} is the catalog's {model.short_ref}, not {card.claimed_ref}"
        return RuleResult("name", False, card.name, required, text)
    return RuleResult("name", True, card.name, required, f"{card.name} is the catalog's {model.display_name}")


def _enabled(model: GpuModel) -> RuleResult:
    verb = "takes" if model.enabled else "lists, but does not take,"
    measured = "enabled" if model.enabled else "not enabled"
    return RuleResult(
        "enabled", model.enabled, measured, "enabled", f"the validator {verb} {model.display_name}"
    )


def _memory(card: MeasuredCard, model: GpuModel, limits: RuleLimits) -> RuleResult:
    measured = int(card.memory_bytes / _BYTES_PER_GB)
    lowest, highest = limits.memory_range(model)
    required = f"{lowest:.0f} to {int(highest)} GB"
    text = f"{measured} GB, the catalog's {model.display_name} has {model.memory_gb} (accepted: {required})"
    return RuleResult("memory_gb", lowest <= measured <= highest, f"{measured} GB", required, text)


def _processors(card: MeasuredCard, model: GpuModel) -> RuleResult:
    unit = "SMs" if model.vendor == "nvidia" else "compute units"
    required = f"{model.processors} {unit}"
    if card.processors is None:
        return _undecided("processors", required, f"the number of {unit}")
    text = f"{card.processors} {unit}, the catalog's {model.display_name} has {model.processors}"
    passed = card.processors == model.processors
    return RuleResult("processors", passed, f"{card.processors} {unit}", required, text)


def _clock(card: MeasuredCard, model: GpuModel, limits: RuleLimits) -> RuleResult:
    lowest, highest = limits.clock_range(model)
    required = f"{lowest:.0f} to {highest:.0f} MHz"
    if card.clock_khz is None:
        return _undecided("clock_mhz", required, "the core clock")
    measured = card.clock_khz / 1000
    if card.clock_is_ceiling and measured > highest:
        what = f"the rated core clock (the driver's ceiling, {measured:.0f} MHz, is not it)"
        return _undecided("clock_mhz", required, what)
    text = f"{measured:.0f} MHz, the catalog's {model.display_name} runs at {required}"
    return RuleResult("clock_mhz", lowest <= measured <= highest, f"{measured:.0f} MHz", required, text)


def _device_index(card: MeasuredCard, limits: RuleLimits) -> RuleResult:
    required = f"below {limits.device_index_below}"
    text = f"device index {card.index}, accepted: {required}"
    return RuleResult(
        "device_index", 0 <= card.index < limits.device_index_below, str(card.index), required, text
    )


def _gpus_on_server(card: MeasuredCard, limits: RuleLimits) -> RuleResult:
    required = f"at most {limits.max_gpus_per_server}"
    if card.gpus_on_server is None:
        return _undecided("max_gpus_per_server", required, "the number of cards in this server")
    text = f"{card.gpus_on_server} cards in one server, accepted: {required}"
    passed = card.gpus_on_server <= limits.max_gpus_per_server
    return RuleResult("max_gpus_per_server", passed, str(card.gpus_on_server), required, text)


def _port(card: MeasuredCard, limits: RuleLimits) -> RuleResult:
    required = f"{limits.lowest_port} to {limits.highest_port}"
    if card.port is None:
        return _undecided("port", required, "the verification port")
    text = f"verification port {card.port}, accepted: {required}"
    passed = limits.lowest_port <= card.port <= limits.highest_port
    return RuleResult("port", passed, str(card.port), required, text)


def _undecided(rule: Rule, required: str, what: str) -> RuleResult:
    return RuleResult(rule, None, NOT_MEASURED, required, f"{what} was not measured")
