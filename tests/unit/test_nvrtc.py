"""The kernels compile for every card they are meant for, without a card, and keep all their values in registers."""

import re

import pytest

from gpupool.devices.recovery import nvrtc
from gpupool.devices.recovery.errors import DeviceFaultError
from gpupool.devices.recovery.nvrtc import CompilerMissingError, compile_cubin, generation_for
from gpupool.devices.recovery.port import kernel_source

KERNELS = {"hang_values", "match_values", "hang_matches", "match_matches"}
NEW = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
OLD = [(6, 0), (6, 1), (7, 0)]
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@pytest.mark.parametrize(
    ("capability", "generation"),
    [*((one, 13) for one in NEW), *((one, 12) for one in OLD)],
    ids=lambda value: "".join(map(str, value)) if isinstance(value, tuple) else f"cuda{value}",
)
def test_kernels_compile_without_spills(capability: tuple[int, int], generation: int) -> None:
    code, report = compile_cubin(kernel_source(), capability, generation)
    assert code.startswith(b"\x7fELF")
    assert all(kernel.encode() in code for kernel in KERNELS)
    assert set(re.findall(r"entry function '(\w+)'", report)) == KERNELS
    frames = SPILLS.findall(report)
    assert len(frames) == len(KERNELS)
    assert set(frames) == {("0", "0", "0")}


@pytest.mark.parametrize(
    ("capability", "driver", "generation"),
    [
        ((8, 9), 13000, 13),
        ((7, 5), 13020, 13),
        ((8, 9), 12040, 12),
        ((6, 1), 12090, 12),
        ((7, 0), 13000, 12),
    ],
)
def test_the_compiler_goes_with_card_and_driver(
    capability: tuple[int, int], driver: int, generation: int
) -> None:
    assert generation_for(capability, driver) == generation


@pytest.mark.parametrize(("capability", "driver"), [((8, 6), 11080), ((3, 7), 12000)])
def test_what_is_too_old_is_told(capability: tuple[int, int], driver: int) -> None:
    with pytest.raises(DeviceFaultError, match="CUDA cannot be used") as fault:
        generation_for(capability, driver)
    assert "OpenCL" in fault.value.remedy


def test_a_fault_in_the_source_is_told_in_the_compilers_words() -> None:
    with pytest.raises(DeviceFaultError, match="undefined"):
        compile_cubin('extern "C" __global__ void f() { nothing(); }', (8, 6), 13)


def test_a_missing_compiler_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nvrtc.PACKAGES, 12, "no-such-package-of-nvidia")
    nvrtc._library.cache_clear()
    with pytest.raises(CompilerMissingError) as fault:
        compile_cubin("", (6, 1), 12)
    assert "pip install no-such-package-of-nvidia" in fault.value.remedy
    nvrtc._library.cache_clear()
