"""Every number that steers balancing, in one place, with what it means and why it has its value.

The values fit lookups that take from milliseconds to a few seconds and clients that wait about five seconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """How a pool judges its nodes; times in seconds.

    Raises:
        ValueError: a value is outside the range said beside it.
    """

    eject_after_failures: int = 3
    """Failures in a row (>= 1) after which a node takes no more traffic."""
    eject_error_share: float = 0.5
    """A node that fails more than this share (0..1] of its recent requests is ejected too."""
    patient_returns: int = 5
    """So often (>= 0) a node is let back after a single good probe although it answered nothing the last time."""
    max_return_probes: int = 16
    """... and then it needs 2, 4, 8 ... good probes in a row, at most this many (>= 1)."""
    probe_interval_s: float = 2.0
    """An ejected node is probed this often, so that is how long a healthy one waits at most."""
    idle_probe_s: float = 10.0
    """A node in service that has said nothing for so long is probed, so that an outage is seen without traffic."""
    last_resort_interval_s: float = 0.25
    """With no node in service, one request per so many seconds may try an ejected node."""
    slow_start_s: float = 5.0
    """A node that comes back or is added late gets its full share of requests after so long; 0 = at once."""
    silence_factor: float = 4.0
    """A node silent for this many times its 99th percentile is given up for that request."""
    silence_floor_s: float = 0.5
    """... but never sooner than this."""
    first_silence_s: float = 2.0
    """What counts as silence of a node that has not yet been measured."""
    first_guess_s: float = 0.05
    """Seconds of a request while nobody has answered one of its kind."""
    stale_after_s: float = 10.0
    """A speed not measured for so long is forgotten, so that a node that was slow gets another try."""
    learn_every_s: float = 0.005
    """What a node answers sooner than so long (>= 0) after its last answer of a kind is not measured: of thousands a
    second some are enough to know it, and each costs as much as the rest of a proxied request's bookkeeping."""
    tie_band: float = 0.1
    """Nodes whose expected finish is within this share of the best take turns."""
    tie_floor_s: float = 0.005
    """... and so do those within so many seconds: which of two equal servers was a little faster lately is chance."""
    hedge_quantile: float = 0.95
    """A request slower than this quantile of its kind is worth asking elsewhere too (0..1)."""
    hedge_ratio: float = 0.05
    """Most hedges per request over time."""
    retry_budget_ratio: float = 0.5
    """Most retries per request over time."""
    retry_floor_per_s: float = 20.0
    """Retries that are always allowed per second, however few requests there are."""
    quarantine_after_wrong: float = 3.0
    """Wrong answers (each fading with `wrong_half_life_s`) after which a node is quarantined."""
    wrong_half_life_s: float = 300.0
    """How fast a wrong answer is forgiven."""
    quarantine_s: float = 600.0
    """First automatic quarantine; doubles each time, up to a day."""
    lately_s: float = 2.0
    """A node that has answered within so long may get retries that the budget does not cover."""
    max_kinds: int = 32
    """Kinds of requests told apart (>= 1); later ones share one set of statistics, so memory is bounded."""

    def __post_init__(self) -> None:
        if self.eject_after_failures < 1 or self.max_return_probes < 1 or self.max_kinds < 1:
            raise ValueError("eject_after_failures, max_return_probes and max_kinds must be at least 1")
        if self.patient_returns < 0:
            raise ValueError("patient_returns must not be negative")
        if not 0 < self.hedge_quantile < 1 or not 0 < self.eject_error_share <= 1:
            raise ValueError("hedge_quantile and eject_error_share must lie between 0 and 1")
        positive = (
            self.probe_interval_s, self.idle_probe_s, self.silence_factor, self.silence_floor_s, self.first_silence_s,
            self.first_guess_s, self.stale_after_s, self.wrong_half_life_s, self.quarantine_s,
            self.quarantine_after_wrong, self.lately_s,
        )  # fmt: skip
        if min(positive) <= 0:
            raise ValueError("intervals, factors and first guesses must be greater than 0")
        others = (
            self.last_resort_interval_s, self.slow_start_s, self.learn_every_s, self.tie_band, self.tie_floor_s,
            self.hedge_ratio, self.retry_budget_ratio, self.retry_floor_per_s,
        )  # fmt: skip
        if min(others) < 0:
            raise ValueError("ratios, the tie band and the slow start must not be negative")
