"""Strict reading of the catalog file: every field is there, has its type and range, and nothing else is.

The file ships with the package and can be refreshed from a validator, so it counts as input: a fault names the
exact field, what was found and what is accepted, and no half-read catalog ever comes out.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from gpupool.catalog.models import ComputeCapability, GpuModel, ProofTiming, TimingFactors, Vendor
from gpupool.catalog.validation import RuleLimits
from gpupool.core.errors import InvalidInputError

MAX_BYTES: Final = 1_000_000
MAX_MODELS: Final = 1_000
_SHORT_REF: Final = re.compile(r"[a-z0-9][a-z0-9_]{0,62}")
_CAPABILITY: Final = re.compile(r"(\d{1,2})\.(\d)")


def read_catalog(text: str) -> tuple[str, RuleLimits, tuple[GpuModel, ...]]:
    """Parse a catalog file; return its source line, the limits of its rules, and its models in table order.

    Raises InvalidInputError naming the first field that is wrong.
    """
    if len(text) > MAX_BYTES:
        raise InvalidInputError(f"The GPU catalog is larger than {MAX_BYTES} characters.")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"The GPU catalog is not JSON: {error}.") from error
    top = _Fields("", document)
    source, _ = top.text("source"), top.take("units")
    limits = _read_limits(_Fields("validation", top.take("validation")))
    factors = _read_factors(_Fields("timing", top.take("timing")))
    rows, not_enabled = top.array("models", MAX_MODELS), top.array("not_enabled", MAX_MODELS)
    top.finish()
    refused = frozenset(str(ref) for ref in not_enabled)
    models = tuple(_read_model(_Fields(f"models[{i}]", row), factors, refused) for i, row in enumerate(rows))
    _check_references(models, refused)
    return source, limits, models


def _check_references(models: tuple[GpuModel, ...], refused: frozenset[str]) -> None:
    refs = [model.short_ref for model in models]
    if not refs:
        raise _fault("models", "a list with at least one model", [])
    twice = sorted({ref for ref in refs if refs.count(ref) > 1})
    if twice:
        raise _fault("models", "a list where each short_ref occurs once", twice)
    if strangers := sorted(refused.difference(refs)):
        raise _fault("not_enabled", "a list of short_refs of this file", strangers)


def _read_limits(fields: "_Fields") -> RuleLimits:
    limits = RuleLimits(
        memory_below_gb=fields.whole("memory_below_gb", 0, 1_000),
        memory_factor=fields.number("memory_factor", 1, 10),
        memory_above_gb=fields.whole("memory_above_gb", 0, 1_000),
        boost_factor=fields.number("boost_factor", 1, 10),
        device_index_below=fields.whole("device_index_below", 1, 1_000),
        max_gpus_per_server=fields.whole("max_gpus_per_server", 1, 1_000),
        lowest_port=fields.whole("lowest_port", 1, 65535),
        highest_port=fields.whole("highest_port", 1, 65535),
    )
    fields.finish()
    return limits


def _read_factors(fields: "_Fields") -> TimingFactors:
    names = ("prove_above", "prove_below", "prove_timeout", "launch_below")
    factors = TimingFactors(*(fields.number(name, 0.01, 100) for name in names))
    fields.finish()
    return factors


def _read_model(fields: "_Fields", factors: TimingFactors, refused: frozenset[str]) -> GpuModel:
    short_ref = fields.text("short_ref")
    if not _SHORT_REF.fullmatch(short_ref):
        raise _fault(fields.at("short_ref"), "lower-case letters, digits and underscores", short_ref)
    estimate = fields.whole("proof_estimate_seconds", 1, 86_400)
    model = GpuModel(
        short_ref=short_ref,
        display_name=fields.text("display_name"),
        group=fields.text("group"),
        vendor=fields.vendor("vendor"),
        pattern=fields.pattern("pattern"),
        memory_gb=fields.whole("memory_gb", 1, 100_000),
        compute_capability=fields.capability("compute_capability"),
        tensor_cores=fields.whole_or_unknown("tensor_cores", 1, 1_000_000),
        processors=fields.whole("processors", 1, 100_000),
        base_mhz=fields.whole("base_mhz", 1, 100_000),
        boost_mhz=fields.whole("boost_mhz", 1, 100_000),
        max_threads_per_processor=fields.whole("max_threads_per_processor", 1, 1_000_000),
        ecc=fields.flag_or_unknown("ecc"),
        sxm=fields.flag_or_unknown("sxm"),
        hourly_usd=fields.number("hourly_usd", 0.0001, 10_000),
        proof_iterations=fields.whole("proof_iterations", 1, 1_000),
        proof_estimate_seconds=estimate,
        timing=ProofTiming(factors, estimate),
        enabled=short_ref not in refused,
    )
    fields.finish()
    if model.base_mhz > model.boost_mhz:
        raise _fault(fields.at("base_mhz"), f"at most boost_mhz, {model.boost_mhz}", model.base_mhz)
    return model


def _fault(where: str, accepted: str, found: object) -> InvalidInputError:
    return InvalidInputError(
        f"The GPU catalog is not valid: {where} must be {accepted}, but is {found!r:.200}."
    )


class _Fields:
    """The fields of one JSON object, each to be taken once, with the path for messages."""

    def __init__(self, path: str, value: object) -> None:
        self._path = path
        if not isinstance(value, Mapping):
            raise _fault(path or "the file", "an object", value)
        self._left: dict[str, Any] = dict(value)

    def at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> Any:
        try:
            return self._left.pop(name)
        except KeyError:
            raise InvalidInputError(f"The GPU catalog is not valid: {self.at(name)} is missing.") from None

    def finish(self) -> None:
        """Raise InvalidInputError where a field nobody asked for is left over."""
        for name in sorted(self._left):
            raise InvalidInputError(f"The GPU catalog is not valid: {self.at(name)} is not a known field.")

    def array(self, name: str, most: int) -> list[Any]:
        value = self.take(name)
        if not isinstance(value, list) or len(value) > most:
            raise _fault(self.at(name), f"a list of at most {most}", value)
        return value

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value.strip() or len(value) > 200:
            raise _fault(self.at(name), "a text of 1 to 200 characters", value)
        return value

    def whole(self, name: str, least: int, most: int) -> int:
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _fault(self.at(name), f"a whole number from {least} to {most}", value)
        return value

    def whole_or_unknown(self, name: str, least: int, most: int) -> int | None:
        return self.whole(name, least, most) if self._known(name) else None

    def number(self, name: str, least: float, most: float) -> float:
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _fault(self.at(name), f"a number from {least} to {most}", value)
        if not least <= value <= most:
            raise _fault(self.at(name), f"a number from {least} to {most}", value)
        return float(value)

    def flag_or_unknown(self, name: str) -> bool | None:
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise _fault(self.at(name), "true, false or null (unknown)", value)
        return value

    def vendor(self, name: str) -> Vendor:
        value = self.take(name)
        known: tuple[Vendor, ...] = get_args(Vendor)
        for vendor in known:
            if value == vendor:
                return vendor
        raise _fault(self.at(name), f"one of {', '.join(known)}", value)

    def pattern(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value or len(value) > 200:
            raise _fault(self.at(name), "a regular expression of 1 to 200 characters", value)
        try:
            re.compile(value)
        except re.error as error:
            raise _fault(self.at(name), f"a regular expression ({error})", value) from error
        return value

    def capability(self, name: str) -> ComputeCapability | None:
        if not self._known(name):
            return None
        value = self.take(name)
        found = _CAPABILITY.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise _fault(self.at(name), 'a compute capability such as "8.6", or null (unknown)', value)
        return int(found[1]), int(found[2])

    def _known(self, name: str) -> bool:
        """Tell whether the field has a value; where it is null, take it."""
        if self._left.get(name, ...) is None:
            self.take(name)
            return False
        return True
