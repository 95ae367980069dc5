"""The page of metrics can be read by Prometheus, adds up, and holds every family that the reference names."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpupool.balancing import Outcome
from gpupool.recompute.proxy.metrics import FAMILIES, PREFIX, metrics_page
from gpupool.recompute.proxy.nodes import Kind, NodeWish
from gpupool.recompute.proxy.proxying import ProxyCore
from gpupool.recompute.proxy.settings import ProxySettings

NAME = "rig-1:11989"


@pytest.fixture
async def core() -> ProxyCore:
    """A proxy with one node that has answered two of three requests."""
    core = ProxyCore(ProxySettings(nodes=(NAME,)), "inst-1", clock=lambda: 100.0)
    core.directory.replace("arguments", [NodeWish("rig-1", 11989, kind=Kind.FRAMES)])
    for seconds in (0.02, 0.3):
        core.frames.pool.finished(core.frames.pool.started(NAME, 100.0), 100.0 + seconds, Outcome.OK)
        core.request_log.forwarded(
            ("10.0.0.1", NAME, "req-1", "frames", seconds * 1000, "ok", 2, core.clock())
        )
    core.request_log.forwarded(("10.0.0.1", "-", "req-2", "frames", 4500.0, "deadline", 1, core.clock()))
    return core


def samples(core: ProxyCore) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics_page(core))
        for sample in family.samples
    }


async def test_it_can_be_read_and_has_every_family(core: ProxyCore) -> None:
    families = {family.name: family for family in text_string_to_metric_families(metrics_page(core))}
    for name, (kind, words) in FAMILIES.items():
        found = families[PREFIX + name.removesuffix("_total")]
        assert (found.type, found.documentation) == (kind, words)


async def test_histograms_add_up(core: ProxyCore) -> None:
    found, kind = samples(core), ("kind", "frames")
    assert found["request_seconds_count", (kind,)] == 2
    assert found["request_seconds_sum", (kind,)] == pytest.approx(0.32)
    buckets = [
        found["request_seconds_bucket", (kind, ("le", edge))]
        for edge in ("0.01", "0.025", "0.25", "0.5", "+Inf")
    ]
    assert buckets == [0, 1, 1, 2, 2]
    assert found["node_request_seconds_count", (("node", NAME),)] == 2


async def test_nodes_are_told_by_state_and_outcome(core: ProxyCore) -> None:
    found, labels = samples(core), (("kind", "frames"), ("node", NAME))
    assert found["node_attempts_total", (*labels, ("outcome", "ok"))] == 2
    assert found["node_state", (*labels, ("state", "live"))] == 1
    assert found["node_limit", labels] == 12
    assert found["node_p99_seconds", labels] >= 0.3
    assert found["attempts_total", (("kind", "frames"),)] == 5
    assert found["retries_total", (("kind", "frames"),)] == 2


async def test_no_address_of_a_client_stands_there(core: ProxyCore) -> None:
    page = metrics_page(core)
    assert "10.0.0.1" not in page
    assert f"{PREFIX}clients_known 1\n" in page
