"""What the catalog knows about one GPU model, and what follows from those facts.

Only facts are stored. Whatever can be derived (the architecture from the compute capability, the timing windows of
the GPU proof from its estimate) is derived here, so that a refreshed catalog can't contradict itself. A fact
nobody published is None: unknown is neither zero nor no.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

Vendor = Literal["nvidia", "amd"]
ComputeCapability = tuple[int, int]

_ARCHITECTURES: Final[tuple[tuple[ComputeCapability, str], ...]] = (
    ((10, 0), "Blackwell"),
    ((9, 0), "Hopper"),
    ((8, 9), "Ada Lovelace"),
    ((8, 0), "Ampere"),
    ((7, 5), "Turing"),
    ((7, 0), "Volta"),
    ((6, 0), "Pascal"),
    ((5, 0), "Maxwell"),
)
"""The first compute capability of each NVIDIA architecture, newest first."""
_FIRST_UNNAMED_MAJOR: Final = 13


def architecture_of(vendor: str, capability: ComputeCapability | None) -> str | None:
    """Return the architecture's name, such as ``Ampere`` for NVIDIA 8.6; None where it can't be told."""
    if vendor != "nvidia" or capability is None or capability[0] >= _FIRST_UNNAMED_MAJOR:
        return None
    return next((name for first, name in _ARCHITECTURES if capability >= first), None)


@dataclass(frozen=True, slots=True)
class TimingFactors:
    """Multiples of a model's proof estimate that bound how long a proof may take."""

    prove_above: float
    """A node's proof must take longer than this multiple: faster is no honest card of this model."""
    prove_below: float
    """A node's proof must take less than this multiple."""
    prove_timeout: float
    """The validator hangs up at this multiple."""
    launch_below: float
    """A proof at a chute's launch must take less than this multiple; it has no lower bound."""


@dataclass(frozen=True, slots=True)
class ProofTiming:
    """The timing windows of one model's GPU proof, in seconds."""

    factors: TimingFactors
    estimate_seconds: int

    @property
    def prove_window(self) -> tuple[float, float]:
        """The open interval that a node's proof must fall into."""
        return (
            self.factors.prove_above * self.estimate_seconds,
            self.factors.prove_below * self.estimate_seconds,
        )

    @property
    def prove_timeout_seconds(self) -> int:
        """When the validator gives up on a node's proof."""
        return int(self.factors.prove_timeout * self.estimate_seconds)

    @property
    def launch_limit_seconds(self) -> float:
        """What a proof at a launch must stay below."""
        return self.factors.launch_below * self.estimate_seconds

    def node_proof_accepted(self, seconds: float) -> bool:
        """Tell whether a node's proof that took ``seconds`` is inside the window (both ends excluded)."""
        lowest, highest = self.prove_window
        return lowest < seconds < highest

    def launch_proof_accepted(self, seconds: float) -> bool:
        """Tell whether a launch proof that took ``seconds`` is fast enough."""
        return 0 <= seconds < self.launch_limit_seconds


@dataclass(frozen=True)
class GpuModel:
    """One row of the catalog."""

    short_ref: str
    """The name in selectors and on the wire, such as ``a100_40gb_sxm``."""
    display_name: str
    group: str
    vendor: Vendor
    pattern: str
    """Regular expression searched in the driver's device name; the first row that matches wins."""
    memory_gb: int
    """GB as the vendor counts them."""
    compute_capability: ComputeCapability | None
    tensor_cores: int | None
    processors: int
    """Streaming multiprocessors, or compute units of an AMD card."""
    base_mhz: int
    boost_mhz: int
    max_threads_per_processor: int
    ecc: bool | None
    sxm: bool | None
    hourly_usd: float
    """The validator's price basis, USD an hour."""
    proof_iterations: int
    proof_estimate_seconds: int
    """Seconds for a whole GPU proof."""
    timing: ProofTiming = field(repr=False)
    enabled: bool = True
    """False where the validator lists the model but doesn't take it."""

    @property
    def architecture(self) -> str | None:
        """The architecture, derived from the compute capability; None where that is unknown."""
        return architecture_of(self.vendor, self.compute_capability)

    def matches(self, device_name: str) -> bool:
        """Tell whether the recognition pattern is found in a driver's device name (case counts)."""
        return self._compiled.search(device_name) is not None

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)
