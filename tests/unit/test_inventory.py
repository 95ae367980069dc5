"""What a device may be used for, and joining two libraries' views of one card."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpupool.catalog import Catalog
from gpupool.devices import DeviceFacts, InventoryEntry, discover
from gpupool.devices.inventory import join, judge
from gpupool.devices.stand_in import StandInProbe

CATALOG = Catalog.load()
RTX_4090 = DeviceFacts(
    uuid="GPU-1",
    name="NVIDIA GeForce RTX 4090",
    vendor="nvidia",
    index=0,
    memory_bytes=25_757_220_864,
    source="nvml",
    compute_capability=(8, 9),
    processors=128,
    clock_khz=2_520_000,
    pci_address="0000:65:00.0",
)
CPU = DeviceFacts(uuid="cpu-1", name="AMD EPYC", vendor="amd", index=0, memory_bytes=10**9, source="cpu")


@dataclass
class Fixed:
    """A probe with fixed devices."""

    found: tuple[DeviceFacts, ...]

    def devices(self) -> tuple[DeviceFacts, ...]:
        return self.found


def _judged(**changes: Any) -> InventoryEntry:
    return judge(replace(RTX_4090, **changes), CATALOG, 1)


def _reason(entry: InventoryEntry, use: str) -> str:
    (reason,) = [permission.reason for permission in entry.permissions if permission.use == use]
    return reason


def test_a_card_of_the_catalog_may_do_everything() -> None:
    entry = _judged()
    assert (entry.short_ref, entry.hourly_usd, entry.failed, entry.undecided) == ("4090", 0.4, (), ())
    assert entry.may("market chutes")
    assert entry.may("private chutes")
    assert entry.may("recompute")


@pytest.mark.parametrize(
    ("changes", "rule", "recognised"),
    [
        ({"name": "Tesla T4"}, "name", None),
        ({"name": "NVIDIA GeForce RTX 4090 D", "processors": 114}, "processors", "4090"),
        ({"memory_bytes": 51_527_024_640}, "memory_gb", "4090"),
        ({"clock_khz": 2_900_000}, "clock_mhz", "4090"),
        ({"index": 10}, "device_index", "4090"),
    ],
)
def test_a_card_that_fails_one_rule_still_does_private_chutes_and_recompute(
    changes: dict[str, Any], rule: str, recognised: str | None
) -> None:
    entry = _judged(**changes)
    assert [result.rule for result in entry.failed] == [rule]
    assert (entry.recognised.short_ref if entry.recognised else None) == recognised
    assert (entry.short_ref, entry.hourly_usd) == (None, None)
    assert not entry.may("market chutes")
    assert _reason(entry, "market chutes") == entry.failed[0].text
    assert entry.may("private chutes")
    assert entry.may("recompute")


def test_an_undecided_number_does_not_keep_a_card_out_but_is_told() -> None:
    entry = _judged(clock_khz=3_105_000, clock_is_ceiling=True)
    assert entry.may("market chutes")
    assert [result.rule for result in entry.undecided] == ["clock_mhz"]
    assert "not measured" in _reason(entry, "market chutes")


def test_a_partitioned_card_can_not_be_held_whole() -> None:
    entry = _judged(partitioned=True)
    assert not any(permission.allowed for permission in entry.permissions)
    assert "MIG" in _reason(entry, "recompute")


def test_the_cpu_does_private_chutes_and_recompute() -> None:
    entry = judge(CPU, CATALOG, 0)
    assert [entry.may(use) for use in ("market chutes", "private chutes", "recompute")] == [False, True, True]
    assert (entry.results, entry.short_ref) == ((), None)


def test_a_stand_in_is_development_mode() -> None:
    (facts,) = StandInProbe(CATALOG.get("h100"), 1).devices()
    entry = judge(facts, CATALOG, 0)
    assert entry.short_ref == "h100"
    assert not entry.may("market chutes")
    assert "development mode" in _reason(entry, "market chutes")
    assert entry.may("private chutes")


def test_the_port_is_judged_once_it_is_known() -> None:
    assert "port" not in [result.rule for result in _judged().results]
    assert [result.rule for result in judge(RTX_4090, CATALOG, 1, port=70).failed] == ["port"]


def test_two_views_of_one_card_become_one_with_the_rated_clock() -> None:
    nvml = replace(RTX_4090, clock_khz=3_105_000, clock_is_ceiling=True, processors=None, driver="580")
    opencl = replace(RTX_4090, uuid="opencl-1", source="opencl", memory_bytes=25_393_692_672, driver="other")
    (card,) = join([nvml, opencl])
    assert card == replace(nvml, clock_khz=2_520_000, clock_is_ceiling=False, processors=128)


def test_a_known_rated_clock_is_not_replaced() -> None:
    (card,) = join([RTX_4090, replace(RTX_4090, clock_khz=1_000_000)])
    assert card == RTX_4090


def test_cards_without_a_place_are_joined_by_uuid_only() -> None:
    placeless = replace(RTX_4090, pci_address=None)
    assert len(join([placeless, placeless, replace(placeless, uuid="GPU-2")])) == 2


def test_discovery_puts_the_cpu_last_and_counts_real_gpus_only() -> None:
    cards = tuple(replace(RTX_4090, uuid=f"GPU-{i}", pci_address=None, index=i) for i in range(9))
    stand_ins = StandInProbe(CATALOG.get("4090"), 5)
    entries = discover(CATALOG, [Fixed((CPU,)), Fixed(cards), stand_ins])
    assert entries[-1].facts == CPU
    assert len(entries) == 15
    assert all(entry.may("market chutes") for entry in entries[:9])


def test_an_eleventh_gpu_fails_the_server_s_rule() -> None:
    cards = tuple(replace(RTX_4090, uuid=f"GPU-{i}", pci_address=None, index=0) for i in range(11))
    entries = discover(CATALOG, [Fixed(cards)])
    assert {result.rule for entry in entries for result in entry.failed} == {"max_gpus_per_server"}


def test_this_machine_has_at_least_its_cpu() -> None:
    entries = discover()
    assert sum(entry.facts.is_cpu for entry in entries) == 1
