"""The GPU models a validator supports: how a card is recognised, what it must measure, and what it earns.

Domain layer: facts and rules, no driver and no network. `gpupool.devices` measures; this package judges.
"""

from gpupool.catalog.models import GpuModel, ProofTiming, architecture_of
from gpupool.catalog.table import Catalog
from gpupool.catalog.validation import MeasuredCard, RuleResult, failed_rules, undecided_rules

__all__ = [
    "Catalog",
    "GpuModel",
    "MeasuredCard",
    "ProofTiming",
    "RuleResult",
    "architecture_of",
    "failed_rules",
    "undecided_rules",
]
