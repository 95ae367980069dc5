"""The first strategy: against brute force on every small fleet, and by hand where a person would ask."""

from itertools import combinations
from typing import Any

from hypothesis import given

from fleet_samples import a_spec
from fleets import MODELS, cpu, fleets, gpu, machine, part, specs, takes, whole
from gpupool.fleet.claims import ClaimMode, refusal
from gpupool.fleet.workloads import Selector, WorkloadSpec
from gpupool.scheduling.cheapest import CheapestFit, Score, score
from gpupool.scheduling.port import FleetView

STRATEGY = CheapestFit(frozenset(MODELS))


def choices(spec: WorkloadSpec, fleet: FleetView) -> list[tuple[Score, str]]:
    """Return every possible choice with its score, by brute force."""
    found: list[tuple[Score, str]] = []
    for candidate in fleet.candidates:
        if not candidate.node.takes_work or (spec.port is not None and spec.port in candidate.ports):
            continue
        able = [device for device in candidate.devices if takes(spec, candidate, device)]
        sets = combinations(able, spec.selector.gpu_count or 1)
        found.extend((score(spec, candidate, chosen), candidate.node.id) for chosen in sets)
    return found


@given(specs(), fleets())
def test_the_choice_is_the_best_of_all(spec: WorkloadSpec, fleet: FleetView) -> None:
    decision = STRATEGY.place(spec, fleet)
    possible = choices(spec, fleet)
    assert decision.placed is bool(possible)
    if possible:
        best = min(possible)[0]
        assert (decision.node_id, tuple(sorted(decision.device_ids))) == best[-2:]
        assert decision.hourly_usd == best[0] / 1e6


@given(specs(), fleets())
def test_the_choice_never_breaks_the_claims_rule(spec: WorkloadSpec, fleet: FleetView) -> None:
    decision = STRATEGY.place(spec, fleet)
    for candidate in fleet.candidates:
        for device in candidate.devices:
            if candidate.node.id == decision.node_id and device.id in decision.device_ids:
                mib = decision.mib if decision.mode is ClaimMode.SHARED else device.memory_mib
                assert refusal(device, candidate.held(device.id), decision.mode, mib) is None


@given(specs(), fleets())
def test_every_node_of_a_refusal_is_accounted_for(spec: WorkloadSpec, fleet: FleetView) -> None:
    decision = STRATEGY.place(spec, fleet)
    if not decision.placed:
        subjects = {refusal.subject for refusal in decision.refusals}
        assert {candidate.node.id for candidate in fleet.candidates} <= subjects or not fleet.candidates
        assert all(refusal.rule and refusal.detail for refusal in decision.refusals)
        assert decision.refusals


@given(specs(), fleets())
def test_the_order_of_the_fleet_does_not_matter(spec: WorkloadSpec, fleet: FleetView) -> None:
    turned = FleetView(candidates=tuple(reversed(fleet.candidates)))
    there, back = STRATEGY.place(spec, fleet), STRATEGY.place(spec, turned)
    assert (there.node_id, there.device_ids) == (back.node_id, back.device_ids)


def gpus(count: int, **selector: Any) -> WorkloadSpec:
    return a_spec(selector=Selector(gpu_count=count, **selector))


def test_the_cheaper_card_wins_even_when_it_fits_worse() -> None:
    fleet = FleetView(candidates=(machine("a", gpu("dear", "h100", 8192)), machine("b", gpu("cheap", "l4"))))
    assert STRATEGY.place(gpus(1), fleet).device_ids == ("cheap",)


def test_at_the_same_price_the_tighter_fit_wins() -> None:
    roomy, tight = gpu("a-roomy", "l4", 81_920), gpu("b-tight", "l4", 24_576)
    fleet = FleetView(candidates=(machine("a", roomy), machine("b", tight)))
    assert STRATEGY.place(gpus(1, min_vram_mib=8192), fleet).device_ids == ("b-tight",)


def test_a_broken_node_is_filled_before_a_whole_one() -> None:
    taken = gpu("b-taken")
    whole_node = machine("a", gpu("a-1"), gpu("a-2"))
    broken = machine("b", taken, gpu("b-free"), claims=(whole(taken),))
    assert STRATEGY.place(gpus(1), FleetView(candidates=(whole_node, broken))).device_ids == ("b-free",)


def test_the_cpu_device_takes_what_its_memory_allows() -> None:
    device = cpu("cpu-a", 4096)
    small = a_spec(memory_mib=1024)
    full = machine("a", device, claims=(part(device, 3500),))
    refused = STRATEGY.place(small, FleetView(candidates=(full,)))
    assert [refusal.rule for refusal in refused.refusals] == ["memory", "cpu"]
    assert "596 MiB free, 1024 MiB asked" in refused.refusals[0].detail
    decision = STRATEGY.place(
        small, FleetView(candidates=(machine("a", device, claims=(part(device, 3072),)),))
    )
    assert (decision.device_ids, decision.mode, decision.mib) == (("cpu-a",), ClaimMode.SHARED, 1024)


def test_outside_the_catalog_a_card_costs_its_share_of_the_node() -> None:
    owned = machine("a", gpu("a-1", None), gpu("a-2", None), hourly_usd=0.5)
    decision = STRATEGY.place(gpus(1), FleetView(candidates=(owned,)))
    assert decision.hourly_usd == 0.25


def test_an_empty_pool_says_so() -> None:
    decision = STRATEGY.place(gpus(1), FleetView())
    assert [refusal.rule for refusal in decision.refusals] == ["empty"]
