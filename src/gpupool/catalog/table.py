"""The catalog as a whole: recognition in table order, validation, and what a card counts for.

The shipped file is the default; a fleet may hold a copy that was refreshed from its validator.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

from gpupool.catalog.models import GpuModel
from gpupool.catalog.reading import read_catalog
from gpupool.catalog.validation import MeasuredCard, RuleLimits, RuleResult, check
from gpupool.core.errors import InvalidInputError, NotFoundError


@dataclass(frozen=True)
class Catalog:
    """The supported GPU models, in table order."""

    source: str
    limits: RuleLimits
    models: tuple[GpuModel, ...]

    @classmethod
    def load(cls, path: Path | None = None) -> "Catalog":
        """Return the shipped catalog (read once a process), or the one kept at ``path``.

        Raises InvalidInputError where the file can't be read or is not a valid catalog.
        """
        if path is None:
            return _shipped()
        try:
            return cls.parse(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"The GPU catalog {path} cannot be read: {error}.") from error

    @classmethod
    def parse(cls, text: str) -> "Catalog":
        """Return the catalog in ``text``; raises InvalidInputError naming the field that is wrong."""
        return cls(*read_catalog(text))

    def __iter__(self) -> Iterator[GpuModel]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def __contains__(self, short_ref: object) -> bool:
        return short_ref in self._by_ref

    def get(self, short_ref: str) -> GpuModel:
        """Return the model of a short ref; raises NotFoundError, with the nearest refs, where there is none."""
        try:
            return self._by_ref[short_ref]
        except KeyError:
            raise NotFoundError(
                f"The GPU catalog has no model {short_ref!r:.80}.{self._suggestion(short_ref)}",
                remedy="See `gpupool gpu catalog` for the models and their short refs.",
            ) from None

    def recognise(self, device_name: str) -> GpuModel | None:
        """Return the first model in table order whose pattern is found in a driver's device name, or None."""
        return next((model for model in self.models if model.matches(device_name)), None)

    def validate(self, card: MeasuredCard) -> tuple[RuleResult, ...]:
        """Return the outcome of every rule for a card."""
        return check(card, self.recognise(card.name), self.limits)

    def compute_multiplier(self, short_ref: str) -> float:
        """Return what a model counts for: its hourly price over the dearest one's, in (0, 1]."""
        return self.get(short_ref).hourly_usd / self._dearest_usd

    def chute_multiplier(self, gpu_count: int, supported: Iterable[str]) -> float:
        """Return what an instance of a chute counts for: its GPUs times the least multiplier of ``supported``.

        Raises InvalidInputError where no model is supported or ``gpu_count`` is negative.
        """
        multipliers = [self.compute_multiplier(ref) for ref in supported]
        if not multipliers or gpu_count < 0:
            raise InvalidInputError(
                "A chute's multiplier needs at least one supported model and a GPU count from 0."
            )
        return gpu_count * min(multipliers)

    def _suggestion(self, short_ref: str) -> str:
        from difflib import get_close_matches

        near = get_close_matches(short_ref.lower()[:80], self._by_ref, n=3)
        return f" Did you mean {' or '.join(near)}?" if near else ""

    @cached_property
    def _by_ref(self) -> dict[str, GpuModel]:
        return {model.short_ref: model for model in self.models}

    @cached_property
    def _dearest_usd(self) -> float:
        return max(model.hourly_usd for model in self.models)


@cache
def _shipped() -> Catalog:
    return Catalog.parse(files("gpupool.catalog").joinpath("gpus.json").read_text())
