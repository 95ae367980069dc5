"""Whether a node deserves traffic: failures take it out, good probes bring it back, wrong answers lock it up.

A node that is really back needs one good probe. One that accepts probes but never answers a request is believed a
few times, and then needs twice as many in a row each time, so it costs ever fewer retries: that is the exponential
back-off.
"""

from gpupool.balancing.policy import Policy
from gpupool.balancing.terms import NodeState, Outcome

_DAY_S = 86_400.0
_UNLIMITED_CEILING = 64


class Health:
    """The standing of one node; all times are the caller's monotonic seconds."""

    __slots__ = (
        "_answered",
        "_away",
        "_draining",
        "_empty_returns",
        "_error_share",
        "_failed_at",
        "_good_probes",
        "_jailed",
        "_next_jail_s",
        "_next_probe",
        "_policy",
        "_until",
        "_wanted_probes",
        "_wrong",
        "_wrong_at",
        "back_at",
        "failures",
        "heard",
        "penalty",
        "reason",
        "serving",
        "starting_at",
    )

    def __init__(self, policy: Policy, joined_at: float | None) -> None:
        self._policy = policy
        self._away = False
        self._jailed = False
        self._until: float | None = None
        self._draining = False
        self.serving = True
        """Whether new requests may go to it in the ordinary way."""
        self.penalty = 1.0
        """The factor (>= 1) by which trouble of late makes it less attractive."""
        self.reason = ""
        self.failures = 0
        self._failed_at = 0.0
        self.heard = joined_at
        """When it last said anything good; None until the first time that matters."""
        self._error_share = 0.0
        self._wrong = 0.0
        self._wrong_at = 0.0
        self._next_jail_s = policy.quarantine_s
        self.starting_at = joined_at
        """When its share began to grow; None once it has all of it."""
        self.back_at = 0.0 if joined_at is None else joined_at
        """When it last came into service; what was sent before says nothing about it now."""
        self._answered = True
        self._good_probes = 0
        self._empty_returns = 0
        self._wanted_probes = 1
        self._next_probe = 0.0

    @property
    def last_resort(self) -> bool:
        """Say whether it may be tried when nothing else is left."""
        return self._away and not (self._jailed or self._draining)

    @property
    def state(self) -> NodeState:
        """Return its standing as a word."""
        if self._jailed:
            return NodeState.QUARANTINED
        if self._draining:
            return NodeState.DRAINING
        if self._away:
            return NodeState.EJECTED
        return NodeState.LIVE if self.starting_at is None else NodeState.STARTING

    def allowance(self, now: float, limit: int | None) -> int | None:
        """Return how many requests it may have at once now; grows over the slow start; None = no limit."""
        if self.starting_at is None:
            return limit
        if not self._answered:
            return 1
        age = max(0.0, now - self.starting_at)
        if age >= self._policy.slow_start_s:
            return limit
        ceiling = limit or _UNLIMITED_CEILING
        return min(ceiling, 1 + int(ceiling * age / self._policy.slow_start_s))

    def record(self, outcome: Outcome, now: float, why: str = "") -> bool:
        """Take in how a request ended; True when that brought the node back into service."""
        if outcome is Outcome.CANCELLED:
            return False
        if outcome is Outcome.OK:
            return self.answered(now)
        self._error_share += 0.1 * (1 - self._error_share)
        if outcome is Outcome.WRONG:
            self._wrong_answer(now, why)
            self._judge()
            return False
        self.failures += 1
        self._failed_at = now
        # Back from an absence and not yet heard: one failure is enough.
        most = self._policy.eject_after_failures if self._answered else 1
        if not self._away and (self.failures >= most or self._error_share > self._policy.eject_error_share):
            share = f"{self._policy.eject_error_share:.0%} of its recent requests failed"
            row = f"failed {self.failures} times in a row, last: {outcome.replace('_', ' ')}"
            self._eject(row if self.failures >= most else f"more than {share}", now)
        self._judge()
        return False

    def probed(self, ok: bool, now: float) -> bool:
        """Take in a probe; True when it brought the node back into service."""
        if not ok:
            self._good_probes = 0
            return self.record(Outcome.FAILED, now)
        self.heard = now
        if not self._away:
            return False
        self._good_probes += 1
        return self._good_probes >= self._wanted_probes and self._return(now)

    def probe_due(self, now: float) -> bool:
        """Say whether to probe it now; a yes is given once per interval."""
        if self._jailed or now < self._next_probe:
            return False
        if self.heard is None:
            self.heard = now
        if not self._away and now - self.heard < self._policy.idle_probe_s:
            return False
        self._next_probe = now + self._policy.probe_interval_s
        return True

    def lock(self, reason: str, until: float | None = None) -> None:
        """Quarantine it until ``until``, or until released."""
        self._jailed, self._until, self.reason = True, until, reason
        self._judge()

    def drain(self) -> None:
        """Take nothing new until released."""
        self._draining = True
        self._judge()

    def release(self, now: float | None = None) -> None:
        """End a drain and a quarantine; what was quarantined must pass a probe first."""
        self._draining = False
        if self._jailed:
            self._jailed, self._until = False, None
            self._away, self._good_probes, self._wanted_probes = True, 0, 1
            self._next_probe = 0.0 if now is None else now
            self._error_share, self._wrong = 0.0, 0.0
        self._judge()

    def tick(self, now: float) -> None:
        """Let time end a slow start, a quarantine, and the doubt about a node that failed and got nothing since."""
        if self.failures and self.serving and now - self._failed_at > self._policy.probe_interval_s / 2:
            # Few requests come by, so it could stay disliked for ever: let a probe decide.
            self._eject("failed, and has answered nothing since", now)
            self._next_probe = now
            self._judge()
        if self.starting_at is not None and now - self.starting_at >= self._policy.slow_start_s:
            self.starting_at = None
        if self._jailed and self._until is not None and now >= self._until:
            self.release(now)

    def answered(self, now: float) -> bool:
        """Take in a good answer; True when that brought the node back into service."""
        self.heard = now
        self._answered = True
        if self._error_share:
            self.failures = 0
            self._error_share = self._error_share * 0.9 if self._error_share > 1e-3 else 0.0
            self._judge()
        return self._away and self._return(now)

    def _return(self, now: float) -> bool:
        self._away = False
        self.failures = 0
        self._error_share = 0.0
        self.reason = ""
        self.starting_at = now
        self.back_at = now
        self._judge()
        return True

    def _judge(self) -> None:
        # Kept ready, because they are read with every request and change seldom.
        self.serving = not (self._away or self._jailed or self._draining)
        self.penalty = 4.0 ** min(self.failures, 4) * (1.0 + 10.0 * self._error_share)

    def _eject(self, reason: str, now: float) -> None:
        self._away = True
        self.reason = reason
        self._empty_returns = 0 if self._answered else self._empty_returns + 1
        doublings = min(30, max(0, self._empty_returns - self._policy.patient_returns))
        self._wanted_probes = min(self._policy.max_return_probes, 2**doublings)
        self._answered = False
        self._good_probes = 0
        self._next_probe = now + self._policy.probe_interval_s

    def _wrong_answer(self, now: float, why: str) -> None:
        policy = self._policy
        self._wrong = 1 + self._wrong * 0.5 ** (max(0.0, now - self._wrong_at) / policy.wrong_half_life_s)
        self._wrong_at = now
        # A breath of time passes between wrong answers, in which they fade a little.
        if self._wrong > policy.quarantine_after_wrong - 0.5 and not self._jailed:
            self.lock(
                f"wrong answers, the last one: {why}" if why else "wrong answers", now + self._next_jail_s
            )
            self._next_jail_s = min(_DAY_S, 2 * self._next_jail_s)
