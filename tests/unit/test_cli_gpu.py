"""``gpupool gpu list`` and ``gpupool gpu catalog`` as a user or a script meets them."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from gpupool.catalog import Catalog
from gpupool.catalog.columns import COLUMNS
from gpupool.cli.gpu import app
from gpupool.devices import DeviceFacts
from gpupool.devices.stand_in import StandInProbe

RTX_4090_D = DeviceFacts(
    uuid="GPU-1",
    name="NVIDIA GeForce RTX 4090 D",
    vendor="nvidia",
    index=0,
    memory_bytes=25_757_220_864,
    source="nvml",
    compute_capability=(8, 9),
    processors=114,
    clock_khz=2_520_000,
)
CPU = DeviceFacts(uuid="cpu-1", name="AMD EPYC", vendor="amd", index=0, memory_bytes=10**10, source="cpu")


class Fixed:
    """A probe with fixed devices."""

    def __init__(self, *devices: DeviceFacts) -> None:
        self._devices = devices

    def devices(self) -> tuple[DeviceFacts, ...]:
        return self._devices


def _run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == exit_code, result.output
    return result.output


def _with_devices(monkeypatch: pytest.MonkeyPatch, *probes: Any) -> None:
    monkeypatch.setattr("gpupool.devices.inventory.default_probes", lambda: probes)


def _joined(text: str) -> str:
    return " ".join(text.split())


def test_a_machine_without_a_gpu_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_devices(monkeypatch, Fixed(CPU))
    output = _run("list")
    assert "CPU: AMD EPYC" in output
    assert "No accelerator was found" in output


def test_a_card_that_fails_a_rule_is_shown_with_it_and_with_what_it_may_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with_devices(monkeypatch, Fixed(RTX_4090_D, CPU))
    output = _joined(_run("list"))
    assert "NVIDIA GeForce RTX 4090 D: no market chutes: 114 SMs, the catalog's RTX 4090 has 128." in output
    assert "No accelerator" not in output


def test_an_undecided_rule_is_told_with_the_way_to_decide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    card = replace(
        RTX_4090_D, name="NVIDIA GeForce RTX 4090", processors=128, clock_khz=3_105_000, clock_is_ceiling=True
    )
    _with_devices(monkeypatch, Fixed(card, CPU))
    output = _joined(_run("list"))
    assert "clock_mhz is undecided" in output
    assert "`node` extra" in output


def test_a_stand_in_is_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_devices(monkeypatch, StandInProbe(Catalog.load().get("4090"), 1), Fixed(CPU))
    output = _joined(_run("list"))
    assert "stand-in" in output
    assert "development mode" in output
    (entry, _) = json.loads(_run("list", "--json"))
    assert (entry["stand_in"], entry["stand_in_for"]) == (True, "4090")


def test_names_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_devices(monkeypatch, Fixed(replace(RTX_4090_D, name="[red]Odd[/red] card"), CPU))
    assert "[red]Odd[/red] card" in _joined(_run("list"))


def test_devices_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_devices(monkeypatch, Fixed(RTX_4090_D, CPU))
    card, cpu = json.loads(_run("list", "--json"))
    assert (card["recognised_as"], card["short_ref"], card["architecture"]) == ("4090", None, "Ada Lovelace")
    assert card["compute_capability"] == "8.9"
    assert [rule["rule"] for rule in card["rules"] if rule["passed"] is False] == ["processors"]
    assert [use["use"] for use in card["may"] if use["allowed"]] == ["private chutes", "recompute"]
    assert (cpu["source"], cpu["processors"], cpu["rules"]) == ("cpu", None, [])


def test_this_machine_is_listed() -> None:
    assert [device["source"] for device in json.loads(_run("list", "--json"))].count("cpu") == 1


def test_the_catalog_fits_into_80_columns() -> None:
    lines = _run("catalog").splitlines()
    assert len(lines) == 28
    assert max(len(line) for line in lines) <= 80
    assert lines[0].split() == ["ref", "model", "group", "GB", "architecture", "SMs", "USD/h"]
    assert lines[-1] == "Listed, but not taken by the validator: mi300x."


def test_every_column_is_shown_in_full_with_wide() -> None:
    output = _run("catalog", "--wide")
    header, *rows = output.splitlines()
    for title in ("recognised by", "tensor cores", "base MHz", "boost MHz", "threads/SM", "ECC", "SXM"):
        assert title in header
    assert "proof iterations" in header
    assert "proof estimate s" in header
    assert "A100.?SXM.?.?40GB" in output
    assert "…" not in output
    (unknown,) = [row for row in rows if row.startswith("h20 ")]
    assert unknown.split() == [
        *("h20", "H20", "Hopper", "nvidia", "H20$", "96", "-", "-", "78"),
        *("1590", "1980", "1024", "-", "-", "0.60", "1", "300"),
    ]


def test_filters_and_sorting_of_the_catalog() -> None:
    arguments = (
        "catalog",
        "--arch",
        "ampere",
        "--min-memory",
        "40",
        "--max-price",
        "1.1",
        "--vendor",
        "nvidia",
    )
    rows = json.loads(_run(*arguments, "--sort", "hourly_usd", "--desc", "--json"))
    assert [row["short_ref"] for row in rows] == ["a100_40gb", "a6000", "a40"]
    assert json.loads(_run("catalog", "--group", "voodoo", "--json")) == []
    assert "Loosen a filter" in _run("catalog", "--group", "voodoo")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert "--arch 'ampre' fits none; the nearest are Ampere." in _joined(_run("catalog", "--arch", "ampre"))
    told = _joined(_run("catalog", "--vendor", "voodoo"))
    assert "--vendor 'voodoo' fits none; there are amd, nvidia." in told
    assert "fits none" not in _run("catalog", "--arch", "ampere", "--min-memory", "9999")


def test_columns_to_sort_by_are_named_as_shown() -> None:
    for column in COLUMNS:
        by_title = _run("catalog", "--sort", column.title, "--json")
        assert by_title == _run("catalog", "--sort", column.key, "--json")
        assert by_title == _run("catalog", "--sort", column.title.upper(), "--json")


def test_unknown_is_null_in_json() -> None:
    (row,) = json.loads(_run("catalog", "--group", "other", "--vendor", "amd", "--json"))
    assert (row["short_ref"], row["enabled"]) == ("mi300x", False)
    assert [key for key, value in row.items() if value is None] == [
        "architecture",
        "tensor_cores",
        "ecc",
        "sxm",
        "compute_capability",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--sort", "colour"), "the columns are short_ref"),
        (("--desc",), "--desc needs --sort COLUMN"),
        (("--min-memory", "-1"), "--min-memory"),
        (("--max-price", "cheap"), "--max-price"),
    ],
)
def test_wrong_options_are_refused_with_the_way_out(arguments: tuple[str, ...], told: str) -> None:
    output = _run("catalog", *arguments, exit_code=2)
    assert told in " ".join(output.replace("│", " ").split())


def test_importing_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, gpupool.cli.gpu;"
        "print([m for m in ('gpupool.catalog', 'gpupool.devices', 'pynvml', 'pyopencl') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


def test_discovery_imports_no_driver_bindings_where_there_is_no_driver() -> None:
    code = (
        "import sys; from gpupool.devices import discover; from gpupool.devices.nvml import load_nvml;"
        "from gpupool.devices.opencl import load_opencl; discover();"
        "print(('pynvml' in sys.modules) == (load_nvml() is not None),"
        "('pyopencl' in sys.modules) == (load_opencl() is not None), 'pydantic' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["True", "True", "False"]
