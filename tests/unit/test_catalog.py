"""The shipped catalog: all 26 rows, recognition in table order, and what is derived from a row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.catalog import Catalog, GpuModel, architecture_of
from gpupool.core.errors import InvalidInputError, NotFoundError

CATALOG = Catalog.load()

# The operators' table, typed independently of the package data:
# ref, GB, compute capability, tensor cores, SMs, base/boost MHz, threads, ECC, SXM, USD/h, iterations/estimate.
OPERATORS_TABLE = """
3090 24 8.6 328 82 1395/1695 1536 n n 0.25 1/70
4090 24 8.9 512 128 2235/2520 1536 n n 0.40 2/65
5090 32 12.0 680 170 2017/2407 1536 n n 0.70 2/60
a4000 16 8.6 168 48 765/1560 1536 y n 0.20 1/75
a4000_ada 20 8.9 192 48 765/2175 1536 y n 0.21 1/80
a5000 24 8.6 256 64 1170/1695 1536 n n 0.25 1/92
a6000 48 8.6 336 84 1455/1860 1536 y n 0.50 1/140
a6000_ada 48 8.9 568 142 915/2505 1536 y n 0.75 1/60
pro_6000 96 - - 188 1590/2617 1024 - - 1.80 1/103
l4 24 8.9 240 58 795/2040 1536 y n 0.25 1/85
a10 24 8.6 208 72 1110/1710 1536 y n 0.25 1/82
a40 48 8.6 336 84 1305/1740 1536 y n 0.50 1/142
l40 48 8.9 568 142 735/2490 1536 y n 0.55 1/60
l40s 48 8.9 568 142 1065/2520 1536 y n 0.85 1/60
a100_40gb 40 8.0 432 108 1065/1410 2048 y n 1.10 4/60
a100_40gb_sxm 40 8.0 432 108 1065/1410 2048 y y 1.15 4/60
a100 80 8.0 432 108 1065/1410 2048 y n 1.20 2/58
a100_sxm 80 8.0 432 108 1275/1410 2048 y y 1.25 3/70
h100 80 9.0 456 114 1095/1755 2048 y n 1.79 2/62
h100_nvl 96 9.0 456 132 1590/1980 2048 y y 2.25 3/75
h100_sxm 80 9.0 528 132 1590/1980 2048 y y 2.35 5/70
h800 80 9.0 456 114 1095/1755 2048 y n 1.50 3/75
h20 96 - - 78 1590/1980 1024 - - 0.60 1/300
h200 140 9.0 528 132 1590/1980 2048 y y 2.75 3/70
mi300x 192 - - 304 1600/2100 256 - - 3.00 2/75
b200 192 - - 148 1590/1965 1024 - - 4.50 2/75
"""
ROWS = [line.split() for line in OPERATORS_TABLE.strip().splitlines()]

# What drivers really report for a card of each model.
DRIVER_NAMES = {
    "3090": "NVIDIA GeForce RTX 3090",
    "4090": "NVIDIA GeForce RTX 4090",
    "5090": "NVIDIA GeForce RTX 5090",
    "a4000": "NVIDIA RTX A4000",
    "a4000_ada": "NVIDIA RTX 4000 Ada Generation",
    "a5000": "NVIDIA RTX A5000",
    "a6000": "NVIDIA RTX A6000",
    "a6000_ada": "NVIDIA RTX 6000 Ada Generation",
    "pro_6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "l4": "NVIDIA L4",
    "a10": "NVIDIA A10",
    "a40": "NVIDIA A40",
    "l40": "NVIDIA L40",
    "l40s": "NVIDIA L40S",
    "a100_40gb": "NVIDIA A100-PCIE-40GB",
    "a100_40gb_sxm": "NVIDIA A100-SXM4-40GB",
    "a100": "NVIDIA A100 80GB PCIe",
    "a100_sxm": "NVIDIA A100-SXM4-80GB",
    "h100": "NVIDIA H100 PCIe",
    "h100_nvl": "NVIDIA H100 NVL",
    "h100_sxm": "NVIDIA H100 80GB HBM3",
    "h800": "NVIDIA H800 PCIe",
    "h20": "NVIDIA H20",
    "h200": "NVIDIA H200",
    "mi300x": "gfx942:sramecc+:xnack-",
    "b200": "NVIDIA B200",
}
ARCHITECTURES = {
    "8.0": "Ampere",
    "8.6": "Ampere",
    "8.9": "Ada Lovelace",
    "9.0": "Hopper",
    "12.0": "Blackwell",
}


def _known(text: str) -> str | None:
    return None if text == "-" else text


def test_table_order_is_that_of_the_validator() -> None:
    assert [model.short_ref for model in CATALOG] == [row[0] for row in ROWS]
    assert len(CATALOG) == 26


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_number_of_a_row(row: list[str]) -> None:
    ref, memory, capability, tensor_cores, processors, clocks, threads, ecc, sxm, price, proof = row
    model = CATALOG.get(ref)
    flags = {"y": True, "n": False, "-": None}
    assert model.memory_gb == int(memory)
    assert model.compute_capability == (
        None if capability == "-" else tuple(int(part) for part in capability.split("."))
    )
    assert model.tensor_cores == (None if tensor_cores == "-" else int(tensor_cores))
    assert model.processors == int(processors)
    assert f"{model.base_mhz}/{model.boost_mhz}" == clocks
    assert model.max_threads_per_processor == int(threads)
    assert (model.ecc, model.sxm) == (flags[ecc], flags[sxm])
    assert model.hourly_usd == float(price)
    assert f"{model.proof_iterations}/{model.proof_estimate_seconds}" == proof
    assert model.architecture == (ARCHITECTURES[capability] if _known(capability) else None)


@pytest.mark.parametrize(("ref", "name"), DRIVER_NAMES.items())
def test_each_model_is_recognised_by_its_driver_name(ref: str, name: str) -> None:
    model = CATALOG.recognise(name)
    assert model is not None
    assert model.short_ref == ref


def test_driver_names_cover_the_catalog() -> None:
    assert set(DRIVER_NAMES) == {model.short_ref for model in CATALOG}


@pytest.mark.parametrize(
    "name",
    [
        "Tesla T4",
        "Tesla P100-PCIE-16GB",
        "Tesla V100-SXM2-32GB",
        "NVIDIA A10G",
        "NVIDIA RTX A1000",
        "NVIDIA P106-100",
        "NVIDIA CMP 170HX",
        "NVIDIA GeForce RTX 3080",
        "NVIDIA RTX 4000 SFF Ada Generation",
        "NVIDIA GH200 480GB",
        "nvidia geforce rtx 4090",
        "AMD Radeon RX 7900 XTX",
        "",
    ],
)
def test_cards_outside_the_catalog_are_not_recognised(name: str) -> None:
    assert CATALOG.recognise(name) is None


@pytest.mark.parametrize(
    ("name", "ref"),
    [
        ("NVIDIA GeForce RTX 4090 D", "4090"),
        ("NVIDIA GeForce RTX 3090 Ti", "3090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "4090"),
        ("NVIDIA RTX A400", "a40"),
        ("NVIDIA RTX A4000 Ada", "a40"),
        ("NVIDIA H200 NVL", "h200"),
    ],
)
def test_relatives_of_a_model_are_recognised_as_it_and_left_to_the_numbers(name: str, ref: str) -> None:
    model = CATALOG.recognise(name)
    assert model is not None
    assert model.short_ref == ref


@given(st.sampled_from(list(DRIVER_NAMES.values())), st.text(max_size=20), st.text(max_size=20))
def test_recognition_returns_the_first_row_that_matches(name: str, before: str, after: str) -> None:
    name = before + name + after
    found = CATALOG.recognise(name)
    matching = [row for row in CATALOG if row.matches(name)]
    assert found == (matching[0] if matching else None)


def test_only_mi300x_is_not_enabled() -> None:
    assert [model.short_ref for model in CATALOG if not model.enabled] == ["mi300x"]


@pytest.mark.parametrize(
    ("vendor", "capability", "name"),
    [
        ("nvidia", (5, 2), "Maxwell"),
        ("nvidia", (6, 1), "Pascal"),
        ("nvidia", (7, 0), "Volta"),
        ("nvidia", (7, 5), "Turing"),
        ("nvidia", (8, 6), "Ampere"),
        ("nvidia", (8, 9), "Ada Lovelace"),
        ("nvidia", (9, 0), "Hopper"),
        ("nvidia", (10, 3), "Blackwell"),
        ("nvidia", (12, 1), "Blackwell"),
        ("nvidia", (13, 0), None),
        ("nvidia", (3, 5), None),
        ("nvidia", None, None),
        ("amd", (9, 0), None),
    ],
)
def test_architecture_follows_from_the_compute_capability(
    vendor: str, capability: tuple[int, int] | None, name: str | None
) -> None:
    assert architecture_of(vendor, capability) == name


def test_timing_windows_of_a_4090() -> None:
    timing = CATALOG.get("4090").timing
    assert timing.prove_window == pytest.approx((35.75, 110.5))
    assert timing.prove_timeout_seconds == 162
    assert timing.launch_limit_seconds == pytest.approx(139.75)


@pytest.mark.parametrize("model", CATALOG, ids=lambda model: model.short_ref)
def test_timing_windows_exclude_their_ends(model: GpuModel) -> None:
    timing = model.timing
    lowest, highest = timing.prove_window
    assert timing.node_proof_accepted(timing.estimate_seconds)
    assert not timing.node_proof_accepted(lowest)
    assert not timing.node_proof_accepted(highest)
    assert timing.launch_proof_accepted(0.001)
    assert not timing.launch_proof_accepted(timing.launch_limit_seconds)
    assert not timing.launch_proof_accepted(-1)
    assert highest < timing.prove_timeout_seconds


def test_compute_multipliers() -> None:
    assert CATALOG.compute_multiplier("b200") == 1
    assert CATALOG.compute_multiplier("3090") == pytest.approx(0.055556, abs=1e-6)
    assert CATALOG.chute_multiplier(8, ["h200", "a100"]) == pytest.approx(8 * 1.2 / 4.5)
    assert CATALOG.chute_multiplier(0, ["h200"]) == 0


def test_a_chute_that_supports_no_model_has_no_multiplier() -> None:
    with pytest.raises(InvalidInputError):
        CATALOG.chute_multiplier(1, [])
    with pytest.raises(InvalidInputError):
        CATALOG.chute_multiplier(-1, ["h200"])


def test_an_unknown_ref_is_told_with_its_neighbours() -> None:
    with pytest.raises(NotFoundError, match=r"no model 'A100_sx'.*a100_sxm"):
        CATALOG.get("A100_sx")
    assert "4090" in CATALOG
    assert "t4" not in CATALOG


def test_the_shipped_catalog_is_read_once() -> None:
    assert Catalog.load() is CATALOG
