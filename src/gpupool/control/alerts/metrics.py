"""The alert desk for Prometheus: alarms by rule, and how telling them goes."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpupool.control.alerts.desk import AlertDesk
from gpupool.control.alerts.rules import RULES
from gpupool.notify.courier import Outcome


class DeskMetrics(Collector):
    """Read from the desk at every scrape."""

    def __init__(self, desk: AlertDesk) -> None:
        self._desk = desk

    def describe(self) -> Iterator[Metric]:
        """Return the families without asking the desk."""
        return iter(_families())

    def collect(self) -> Iterator[Metric]:
        """Return what there is now."""
        alarms, tries, waiting = _families()
        lasting = Counter(alarm.rule for alarm in self._desk.alarms if alarm.until is None)
        for name, rule in RULES.items():
            alarms.add_metric([name, rule.severity.value], lasting[name])
        for courier, _ in self._desk.couriers:
            waiting.add_metric([courier.target], courier.waiting)
            for outcome in Outcome:
                tries.add_metric(
                    [courier.target, outcome.value], self._desk.tries[courier.target, outcome.value]
                )
        return iter((alarms, tries, waiting))


def _families() -> tuple[GaugeMetricFamily, CounterMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("gpupool_alarms", "Alarms that last, by rule.", labels=("rule", "severity")),
        CounterMetricFamily(
            "gpupool_alert_tries",
            "Tries to deliver a message, by what became of them.",
            labels=("target", "outcome"),
        ),
        GaugeMetricFamily("gpupool_alert_waiting", "Messages that wait for a target.", labels=("target",)),
    )
