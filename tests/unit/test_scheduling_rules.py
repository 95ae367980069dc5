"""Each rule by its name: what it refuses, and with which words."""

from typing import Any

import pytest

from fleet_samples import a_spec
from fleets import MODELS, cpu, gpu, machine, part, whole
from gpupool.fleet.devices import Device, ProofState
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.workloads import Selector, WorkloadSpec
from gpupool.scheduling.port import Candidate
from gpupool.scheduling.rules import device_refusals, node_refusals, spec_refusals


def one(**selector: Any) -> WorkloadSpec:
    """Return a spec for one GPU."""
    return a_spec(selector=Selector(gpu_count=1, **selector))


@pytest.mark.parametrize(
    ("spec", "node", "rule"),
    [
        (one(), {"state": NodeState.JOINING}, "node_state"),
        (one(), {"state": NodeState.VERIFYING}, "node_state"),
        (one(), {"state": NodeState.UNREACHABLE}, "node_state"),
        (one(), {"locked": True}, "node_locked"),
        (one(), {"draining": True}, "node_draining"),
        (a_spec(command=(), image="repo/image:1"), {}, "runtime"),
        (one(), {"runtimes": ("container",)}, "runtime"),
        (a_spec(port=30001), {"ports": frozenset({30001})}, "port"),
    ],
)
def test_node_rules(spec: WorkloadSpec, node: dict[str, Any], rule: str) -> None:
    assert [refusal.rule for refusal in node_refusals(spec, machine("a"))] == (
        ["runtime"] if rule == "runtime" and spec.image else []
    )
    refusals = list(node_refusals(spec, machine("a", **node)))
    assert [refusal.rule for refusal in refusals] == [rule]
    assert refusals[0].subject == "a"


def test_an_image_runs_where_containers_do() -> None:
    spec = a_spec(command=(), image="repo/image:1")
    assert list(node_refusals(spec, machine("a", runtimes=("process", "container")))) == []


@pytest.mark.parametrize(
    ("spec", "device", "rule"),
    [
        (one(), gpu("g", present=False), "absent"),
        (one(), cpu("c"), "kind"),
        (a_spec(), gpu("g"), "kind"),
        (one(min_vram_mib=30_000), gpu("g"), "min_vram"),
        (one(include=frozenset({"h100"})), gpu("g"), "include"),
        (one(include=frozenset({"h100"})), gpu("g", None), "include"),
        (one(exclude=frozenset({"l4"})), gpu("g"), "exclude"),
        (one(max_hourly_usd=0.2), gpu("g"), "max_price"),
        (one(max_hourly_usd=0.2), gpu("g", None), "max_price"),
    ],
)
def test_device_rules(spec: WorkloadSpec, device: Device, rule: str) -> None:
    refusals = list(device_refusals(spec, machine("a", device), device))
    assert [(refusal.subject, refusal.rule) for refusal in refusals] == [(device.id, rule)]


@pytest.mark.parametrize(
    "card",
    [
        gpu("g", None),
        gpu("g", stand_in=True),
        gpu("g", failed_rules=("has fewer processors than the model",)),
        gpu("g", proof=ProofState.REFUTED),
    ],
)
def test_the_market_takes_honest_catalog_cards_only(card: Device) -> None:
    market = a_spec(selector=Selector(gpu_count=1), private=False)
    assert [refusal.rule for refusal in device_refusals(market, machine("a", card), card)] == ["market"]
    assert list(device_refusals(one(), machine("a", card), card)) == []
    assert list(device_refusals(market, machine("a", gpu("g")), gpu("g"))) == []


def test_claims_are_respected() -> None:
    card, host = gpu("g"), cpu("c", 2048)
    taken = machine("a", card, host, claims=(whole(card), part(host, 1500)))
    assert rules_of(one(), taken, card) == ["claimed"]
    assert rules_of(a_spec(memory_mib=1024), taken, host) == ["memory"]
    shared = machine("a", card, claims=(part(card, 100),))
    assert rules_of(one(), shared, card) == ["claimed"]


def rules_of(spec: WorkloadSpec, candidate: Candidate, device: Device) -> list[str]:
    return [refusal.rule for refusal in device_refusals(spec, candidate, device)]


def test_a_model_that_the_catalog_lacks_is_named() -> None:
    spec = one(include=frozenset({"l4", "l5"}), exclude=frozenset({"k80"}))
    refusals = list(spec_refusals(spec, MODELS))
    assert [(refusal.subject, refusal.rule) for refusal in refusals] == [("fleet", "unknown_model")] * 2
    assert "l5" in refusals[0].detail
    assert "k80" in refusals[1].detail
