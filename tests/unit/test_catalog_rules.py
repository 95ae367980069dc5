"""The validator's rules at and beside their edges, and what an owner is told."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.catalog import Catalog, GpuModel, MeasuredCard, RuleResult, failed_rules, undecided_rules

CATALOG = Catalog.load()
GB = 10**9
REAL_4090 = MeasuredCard(
    name="NVIDIA GeForce RTX 4090",
    index=0,
    memory_bytes=25_757_220_864,
    processors=128,
    clock_khz=2_520_000,
    claimed_ref="4090",
    gpus_on_server=8,
    port=31234,
)


def _result(card: MeasuredCard, rule: str) -> RuleResult:
    (result,) = [result for result in CATALOG.validate(card) if result.rule == rule]
    return result


def test_a_real_card_passes_every_rule() -> None:
    results = CATALOG.validate(REAL_4090)
    assert [result.rule for result in results] == [
        "name",
        "enabled",
        "memory_gb",
        "processors",
        "clock_mhz",
        "device_index",
        "max_gpus_per_server",
        "port",
    ]
    assert all(result.passed for result in results)


def test_a_4090_d_fails_by_its_processors_only() -> None:
    card = replace(REAL_4090, name="NVIDIA GeForce RTX 4090 D", processors=114)
    (failed,) = failed_rules(CATALOG.validate(card))
    assert failed == RuleResult(
        "processors", False, "114 SMs", "128 SMs", "114 SMs, the catalog's RTX 4090 has 128"
    )


def test_a_modded_4090_fails_by_its_memory_only() -> None:
    (failed,) = failed_rules(CATALOG.validate(replace(REAL_4090, memory_bytes=51_527_024_640)))
    assert failed.rule == "memory_gb"
    assert failed.text == "51 GB, the catalog's RTX 4090 has 24 (accepted: 23 to 26 GB)"


@pytest.mark.parametrize("name", ["Tesla T4", "Tesla P100-PCIE-16GB", "Tesla V100-SXM2-32GB"])
def test_a_card_of_no_row_fails_by_its_name_and_gets_no_row_rules(name: str) -> None:
    results = CATALOG.validate(replace(REAL_4090, name=name, claimed_ref=None))
    (failed,) = failed_rules(results)
    assert failed.rule == "name"
    assert failed.text == f"{name} is in no row of the catalog"
    assert {result.rule for result in results} == {"name", "device_index", "max_gpus_per_server", "port"}


def test_a_card_registered_as_another_model_fails_by_its_name() -> None:
    failed = _result(replace(REAL_4090, claimed_ref="h100"), "name")
    assert failed.passed is False
    assert failed.text == "NVIDIA GeForce RTX 4090 is the catalog's 4090, not h100"


def test_a_model_that_is_not_enabled_is_refused_with_that_reason() -> None:
    card = MeasuredCard("gfx942:sramecc+:xnack-", 0, 206_141_652_992, 304, 2_100_000, gpus_on_server=1)
    (failed,) = failed_rules(CATALOG.validate(card))
    assert failed.rule == "enabled"
    assert "MI300X" in failed.text


@pytest.mark.parametrize(
    ("memory_bytes", "passed"),
    [(23 * GB - 1, False), (23 * GB, True), (27 * GB - 1, True), (27 * GB, False)],
)
def test_memory_is_cut_to_whole_gb_before_it_is_compared(memory_bytes: int, passed: bool) -> None:
    assert _result(replace(REAL_4090, memory_bytes=memory_bytes), "memory_gb").passed is passed


@pytest.mark.parametrize(("processors", "passed"), [(127, False), (128, True), (129, False)])
def test_processors_must_be_equal(processors: int, passed: bool) -> None:
    assert _result(replace(REAL_4090, processors=processors), "processors").passed is passed


@pytest.mark.parametrize(
    ("clock_khz", "passed"),
    [(2_234_999, False), (2_235_000, True), (2_772_000, True), (2_772_001, False)],
)
def test_clock_runs_from_base_to_a_tenth_above_boost(clock_khz: int, passed: bool) -> None:
    assert _result(replace(REAL_4090, clock_khz=clock_khz), "clock_mhz").passed is passed


def test_a_ceiling_above_the_limit_is_undecided_but_one_below_base_fails() -> None:
    above = replace(REAL_4090, clock_khz=3_105_000, clock_is_ceiling=True)
    assert _result(above, "clock_mhz").passed is None
    assert "3105 MHz" in _result(above, "clock_mhz").text
    assert _result(replace(above, clock_khz=2_520_000), "clock_mhz").passed is True
    assert _result(replace(above, clock_khz=1_000_000), "clock_mhz").passed is False


@pytest.mark.parametrize(("index", "passed"), [(-1, False), (0, True), (9, True), (10, False)])
def test_device_index_is_below_ten(index: int, passed: bool) -> None:
    assert _result(replace(REAL_4090, index=index), "device_index").passed is passed


@pytest.mark.parametrize(("count", "passed"), [(1, True), (10, True), (11, False)])
def test_a_server_has_at_most_ten_gpus(count: int, passed: bool) -> None:
    assert _result(replace(REAL_4090, gpus_on_server=count), "max_gpus_per_server").passed is passed


@pytest.mark.parametrize(("port", "passed"), [(79, False), (80, True), (65535, True), (65536, False)])
def test_port_range(port: int, passed: bool) -> None:
    assert _result(replace(REAL_4090, port=port), "port").passed is passed


def test_what_was_not_measured_is_undecided_never_failed() -> None:
    card = MeasuredCard("NVIDIA L4", 0, 24 * GB)
    results = CATALOG.validate(card)
    assert failed_rules(results) == ()
    assert {result.rule for result in undecided_rules(results)} == {
        "processors",
        "clock_mhz",
        "max_gpus_per_server",
        "port",
    }
    assert {result.measured for result in undecided_rules(results)} == {"not measured"}


@given(
    st.sampled_from(list(CATALOG)),
    st.integers(0, 400 * GB),
    st.one_of(st.none(), st.integers(0, 400)),
    st.one_of(st.none(), st.integers(0, 4_000_000)),
)
def test_the_rules_agree_with_the_validator_s_formulas(
    model: GpuModel, memory_bytes: int, processors: int | None, clock_khz: int | None
) -> None:
    name = model.display_name if model.matches(model.display_name) else f"NVIDIA {model.display_name}"
    recognised = CATALOG.recognise(name)
    card = MeasuredCard(name, 0, memory_bytes, processors, clock_khz, gpus_on_server=1, port=8000)
    results = {result.rule: result for result in CATALOG.validate(card)}
    assert all(result.text and result.required and result.measured for result in results.values())
    if recognised is None:
        assert "memory_gb" not in results
        return
    memory, factor = recognised.memory_gb, 1.024**3
    assert results["memory_gb"].passed is (memory - 1 <= int(memory_bytes / 1e9) <= memory * factor + 1)
    expected_processors = None if processors is None else processors == recognised.processors
    assert results["processors"].passed is expected_processors
    in_range = clock_khz is not None and (
        recognised.base_mhz <= clock_khz / 1000 <= recognised.boost_mhz * 1.1
    )
    assert results["clock_mhz"].passed is (None if clock_khz is None else in_range)
