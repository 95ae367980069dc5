"""The catalog as a table: its columns, how a value is shown, and filtering and sorting by them.

The command line, the dashboard and the reference page show the same columns through this one list. An unknown
value is shown as ``-`` and sorts last either way, for it is neither the smallest nor the largest.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gpupool.catalog.models import GpuModel

Value = str | int | float | bool | None
UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``key`` names it in JSON and in ``--sort``, ``title`` heads it."""

    key: str
    title: str
    value: Callable[[GpuModel], Value]
    essential: bool = False
    """Whether it is worth its place in 80 characters."""


COLUMNS: Final = (
    Column("short_ref", "ref", lambda model: model.short_ref, essential=True),
    Column("display_name", "model", lambda model: model.display_name, essential=True),
    Column("group", "group", lambda model: model.group, essential=True),
    Column("vendor", "vendor", lambda model: model.vendor),
    Column("pattern", "recognised by", lambda model: model.pattern),
    Column("memory_gb", "GB", lambda model: model.memory_gb, essential=True),
    Column("architecture", "architecture", lambda model: model.architecture, essential=True),
    Column("tensor_cores", "tensor cores", lambda model: model.tensor_cores),
    Column("processors", "SMs", lambda model: model.processors, essential=True),
    Column("base_mhz", "base MHz", lambda model: model.base_mhz),
    Column("boost_mhz", "boost MHz", lambda model: model.boost_mhz),
    Column("max_threads_per_processor", "threads/SM", lambda model: model.max_threads_per_processor),
    Column("ecc", "ECC", lambda model: model.ecc),
    Column("sxm", "SXM", lambda model: model.sxm),
    Column("hourly_usd", "USD/h", lambda model: model.hourly_usd, essential=True),
    Column("proof_iterations", "proof iterations", lambda model: model.proof_iterations),
    Column("proof_estimate_seconds", "proof estimate s", lambda model: model.proof_estimate_seconds),
)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a model must be to be shown; None asks for nothing. Texts are found anywhere, in either case."""

    group: str | None = None
    min_memory_gb: int | None = None
    max_hourly_usd: float | None = None
    architecture: str | None = None
    vendor: str | None = None

    def accepts(self, model: GpuModel) -> bool:
        """Tell whether the model fits. An unknown architecture fits no wish for one."""
        return (
            _holds(model.group, self.group)
            and _holds(model.architecture, self.architecture)
            and _holds(model.vendor, self.vendor)
            and (self.min_memory_gb is None or model.memory_gb >= self.min_memory_gb)
            and (self.max_hourly_usd is None or model.hourly_usd <= self.max_hourly_usd)
        )


def _holds(text: str | None, wanted: str | None) -> bool:
    return wanted is None or (text is not None and wanted.lower() in text.lower())


def sort_models(
    models: Iterable[GpuModel], column: Column, *, descending: bool = False
) -> tuple[GpuModel, ...]:
    """Return the models sorted by one column, ties in table order, unknown values last."""
    keyed = [(column.value(model), model) for model in models]
    known = [(value, model) for value, model in keyed if value is not None]
    known.sort(key=lambda pair: _sort_key(pair[0]), reverse=descending)
    return (*(model for _, model in known), *(model for value, model in keyed if value is None))


def _sort_key(value: Value) -> tuple[str, float]:
    return (value.lower(), 0.0) if isinstance(value, str) else ("", float(value or 0))


def show(value: Value) -> str:
    """Return a value as people read it: yes or no, prices with two decimals, ``-`` for unknown."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
