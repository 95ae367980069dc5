"""How fast one node answers one kind of request, whatever it has to do at the moment.

Latency alone misleads: a node that queues answers later because it is given more, one with many places does not.
What is kept is latency / load ** 0.5, load being the work ahead of the request (itself too) in requests of its
kind. Expected finish, load times that, then grows with load for both sorts of nodes, so equal nodes get equal
loads, and a fast node with free places is still preferred to a slow one, nearly as strongly as it deserves.
"""

from typing import Final

from gpupool.balancing.histogram import DecayingHistogram

LOAD_POWER: Final = 0.5
_FIRST: Final = 10
"""The first so many answers are averaged; from then on the last one has that share."""
_GAIN: Final = 1 / _FIRST
_USUAL_GAIN: Final = 0.002
_SLOW: Final = 3.0
_DOUBT_S: Final = 1.0
"""A bound that was not confirmed for so long gives way to the first real answer."""
_OLD_S: Final = 5.0
"""... and so does a measurement: a node tried now and then would else need many tries to show it has changed."""


class Speed:
    """Measured seconds of one kind at one node."""

    __slots__ = ("_usual", "at", "count", "doubted", "histogram", "latency", "load", "unit")

    def __init__(self) -> None:
        self.count = 0
        self.unit = 0.0
        """Seconds per request of load, at the load it has lately."""
        self.latency = 0.0
        self.load = 1.0
        self.at = 0.0
        self.doubted = False
        """Whether the last thing known is only that it is slower than something."""
        self.histogram = DecayingHistogram()
        self._usual = 0.0

    def answered(self, latency: float, load: float, now: float) -> None:
        """Take in a good answer: its seconds, and the load (>= 1) when it was sent."""
        unconfirmed = now - latency - self.at
        if unconfirmed > (_DOUBT_S if self.doubted else _OLD_S):
            self.count = 0
        self.doubted = False
        self._learn(latency, load, now)
        self.histogram.add(latency, now)

    def unfinished(self, elapsed: float, load: float, now: float, expected: float) -> None:
        """Take in that a request had no answer after ``elapsed`` seconds, where ``expected`` was its unit.

        It teaches something only when that is longer than expected: the node is slower than thought.
        """
        if elapsed / load**LOAD_POWER > max(expected, self.unit if self.count else 0.0):
            self.doubted = True
            self._learn(elapsed, load, now)

    def forget_speed(self) -> None:
        """Measure anew: the node was away and may have changed. What is usual for it stays known."""
        self.count = 0
        self.histogram = DecayingHistogram()

    @property
    def slow(self) -> bool:
        """Say whether it is now much slower than it usually is."""
        return self.count >= 20 and self.unit > _SLOW * self._usual

    def p99_at(self, load: float) -> float | None:
        """Return the 99th percentile of latency (seconds) to expect at ``load``; None when never measured.

        Above the usual load it grows in proportion, which a node that queues needs.
        """
        p99 = self.histogram.quantile(0.99)
        return None if p99 is None else p99 * max(1.0, load / self.load)

    def _learn(self, latency: float, load: float, now: float) -> None:
        self.count += 1
        gain = _GAIN if self.count > _FIRST else 1 / self.count
        unit = latency / load**LOAD_POWER
        self.unit += gain * (unit - self.unit)
        self.latency += gain * (latency - self.latency)
        self.load += gain * (load - self.load)
        self.at = now
        if self._usual:
            self._usual += _USUAL_GAIN * (unit - self._usual)
        elif self.count >= 20:
            self._usual = self.unit
