"""One contract for every way of finding devices, on fake driver libraries and on this machine's real ones."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import ModuleSpec
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpupool.catalog import Catalog
from gpupool.core.errors import InvalidInputError
from gpupool.devices import opencl
from gpupool.devices.cpu import CpuProbe
from gpupool.devices.nvml import CLOCK_SM, NvmlLibrary, NvmlProbe, processors_of
from gpupool.devices.opencl import OpenClProbe
from gpupool.devices.probe import DeviceProbe
from gpupool.devices.stand_in import StandInProbe


class DriverError(Exception):
    """What a fake driver raises."""


@dataclass
class FakeCard:
    """One card of the fake NVML; an answer that is an exception is raised."""

    uuid: Any = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
    name: Any = "NVIDIA GeForce RTX 4090"
    memory: Any = 25_757_220_864
    capability: Any = (8, 9)
    cores: Any = 16_384
    clock_mhz: Any = 3105
    pci: Any = field(default_factory=lambda: SimpleNamespace(domain=0, bus=0x65, device=0))
    ecc: Any = 0
    mig: Any = field(default_factory=lambda: DriverError("Not Supported"))


def _answer(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


class FakeNvml:
    """A driver library with these cards, in the shape of ``pynvml``."""

    NVMLError: type[Exception] = DriverError

    def __init__(self, cards: Sequence[FakeCard] = (), init: Any = None, count: Any = None) -> None:
        self._cards = list(cards)
        self._init = init
        self._count = len(self._cards) if count is None else count
        self.open = 0

    def nvmlInit(self) -> None:
        _answer(self._init)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        return int(_answer(self._count))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._cards[index]

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(_answer(handle.uuid))

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return str(_answer(handle.name))

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(total=_answer(handle.memory))

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        return _answer(handle.pci)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        capability: tuple[int, int] = _answer(handle.capability)
        return capability

    def nvmlDeviceGetNumGpuCores(self, handle: Any) -> int:
        return int(_answer(handle.cores))

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, domain: int) -> int:
        assert domain == 1
        return int(_answer(handle.clock_mhz))

    def nvmlDeviceGetCurrentEccMode(self, handle: Any) -> int:
        return int(_answer(handle.ecc))

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        mode: list[int] = _answer(handle.mig)
        return mode


MI300X = {
    opencl.NAME: "gfx942:sramecc+:xnack-",
    opencl.VENDOR: "Advanced Micro Devices, Inc.",
    opencl.MEMORY_BYTES: 206_141_652_992,
    opencl.COMPUTE_UNITS: 304,
    opencl.CLOCK_MHZ: 2100,
    opencl.DRIVER: "3635.0 (HSA1.1,LC)",
    opencl.ERROR_CORRECTION: 1,
    opencl.AMD_TOPOLOGY: SimpleNamespace(bus=-27, device=0, function=0),
}
RTX_4090 = {
    opencl.NAME: "NVIDIA GeForce RTX 4090",
    opencl.VENDOR: "NVIDIA Corporation",
    opencl.MEMORY_BYTES: 25_393_692_672,
    opencl.COMPUTE_UNITS: 128,
    opencl.CLOCK_MHZ: 2520,
    opencl.NVIDIA_MAJOR: 8,
    opencl.NVIDIA_MINOR: 9,
    opencl.NVIDIA_PCI_BUS: 0x65,
    opencl.NVIDIA_PCI_SLOT: 0,
    opencl.NVIDIA_PCI_DOMAIN: 0,
}


@dataclass
class FakeClDevice:
    info: dict[int, Any]

    def get_info(self, param: int, /) -> Any:
        if param not in self.info:
            raise DriverError("INVALID_VALUE")
        return self.info[param]


@dataclass
class FakePlatform:
    gpus: Sequence[dict[int, Any]] | Exception

    def get_devices(self, device_type: int, /) -> Sequence[FakeClDevice]:
        assert device_type == opencl.TYPE_GPU
        return [FakeClDevice(info) for info in _answer(self.gpus)]


@dataclass
class FakeOpenCl:
    """An OpenCL loader with these platforms, in the shape of ``pyopencl``."""

    platforms: Sequence[FakePlatform] | Exception
    Error: type[Exception] = DriverError

    def get_platforms(self) -> Sequence[FakePlatform]:
        platforms: Sequence[FakePlatform] = _answer(self.platforms)
        return platforms


def _opencl(*platforms: FakePlatform) -> OpenClProbe:
    library = FakeOpenCl(platforms)
    return OpenClProbe(lambda: library)


TWO_CARDS = (FakeCard(), FakeCard(uuid="GPU-second", pci=SimpleNamespace(domain=1, bus=0xB3, device=0)))
PROBES: dict[str, Callable[[], DeviceProbe]] = {
    "nvml, two cards": lambda: NvmlProbe(lambda: FakeNvml(TWO_CARDS)),
    "nvml, no card": lambda: NvmlProbe(FakeNvml),
    "nvml, real": NvmlProbe,
    "opencl, two vendors": lambda: _opencl(FakePlatform([RTX_4090]), FakePlatform([MI300X])),
    "opencl, no platform": lambda: OpenClProbe(lambda: FakeOpenCl(DriverError("PLATFORM_NOT_FOUND_KHR"))),
    "opencl, real": OpenClProbe,
    "cpu, real": CpuProbe,
    "stand-in": lambda: StandInProbe(Catalog.load().get("4090"), 3),
}


@pytest.fixture(params=list(PROBES))
def probe(request: pytest.FixtureRequest) -> DeviceProbe:
    return PROBES[request.param]()


def test_contract_the_same_devices_in_the_same_order_each_time(probe: DeviceProbe) -> None:
    assert probe.devices() == probe.devices()


def test_contract_uuids_are_unique_and_fit_into_a_path(probe: DeviceProbe) -> None:
    uuids = [device.uuid for device in probe.devices()]
    assert len(set(uuids)) == len(uuids)
    assert all(uuid and uuid.replace("-", "").isalnum() for uuid in (u.replace("_", "") for u in uuids))


def test_contract_each_device_has_a_name_memory_and_an_index_of_its_vendor(probe: DeviceProbe) -> None:
    seen: dict[str, list[int]] = {}
    for device in probe.devices():
        assert device.name
        assert device.name == device.name.strip()
        assert device.memory_bytes > 0
        seen.setdefault(device.vendor, []).append(device.index)
    assert all(indexes == list(range(len(indexes))) for indexes in seen.values())


def test_contract_unknown_is_none_never_zero(probe: DeviceProbe) -> None:
    for device in probe.devices():
        assert device.processors is None or device.processors > 0
        assert device.clock_khz is None or device.clock_khz > 100_000
        assert device.compute_capability is None or device.compute_capability > (0, 0)
        assert device.clock_is_ceiling is False or device.clock_khz is not None


def test_contract_only_a_stand_in_says_so(probe: DeviceProbe) -> None:
    for device in probe.devices():
        assert device.stand_in == (device.source == "stand-in")
        assert device.is_cpu == (device.source == "cpu")


def test_nvml_reads_a_card_in_full() -> None:
    library = FakeNvml(TWO_CARDS)
    first, second = NvmlProbe(lambda: library).devices()
    assert (first.uuid, first.name, first.vendor) == (TWO_CARDS[0].uuid, "NVIDIA GeForce RTX 4090", "nvidia")
    assert (first.memory_bytes, first.processors, first.compute_capability) == (25_757_220_864, 128, (8, 9))
    assert (first.clock_khz, first.clock_is_ceiling) == (3_105_000, True)
    assert (first.pci_address, second.pci_address) == ("0000:65:00.0", "0001:b3:00.0")
    assert (first.driver, first.ecc, first.partitioned) == ("580.65.06", False, False)
    assert library.open == 0


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (FakeCard(cores=DriverError("Not Supported")), ("processors", None)),
        (FakeCard(cores=16_385), ("processors", None)),
        (FakeCard(capability=DriverError("Not Supported")), ("processors", None)),
        (FakeCard(clock_mhz=DriverError("Not Supported")), ("clock_khz", None)),
        (FakeCard(pci=DriverError("Not Supported")), ("pci_address", None)),
        (FakeCard(ecc=DriverError("Not Supported")), ("ecc", None)),
        (FakeCard(ecc=1), ("ecc", True)),
        (FakeCard(mig=[1, 1]), ("partitioned", True)),
        (FakeCard(mig=[0, 1]), ("partitioned", False)),
    ],
)
def test_nvml_keeps_a_card_that_does_not_answer_everything(
    card: FakeCard, expected: tuple[str, object]
) -> None:
    (device,) = NvmlProbe(lambda: FakeNvml([card])).devices()
    name, value = expected
    assert getattr(device, name) is value


def test_nvml_leaves_out_a_card_that_fell_off_the_bus_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    cards = [FakeCard(memory=DriverError("GPU is lost")), TWO_CARDS[1]]
    devices = NvmlProbe(lambda: FakeNvml(cards)).devices()
    assert [device.uuid for device in devices] == ["GPU-second"]
    assert "nvml.card_unreadable index=0 reason=GPU is lost" in caplog.text


def test_nvml_without_a_driver_or_with_a_broken_one_has_no_devices(caplog: pytest.LogCaptureFixture) -> None:
    assert NvmlProbe(lambda: None).devices() == ()
    assert NvmlProbe(lambda: FakeNvml(init=DriverError("Driver Not Loaded"))).devices() == ()
    assert not caplog.records
    broken = FakeNvml(TWO_CARDS, count=DriverError("Unknown Error"))
    assert NvmlProbe(lambda: broken).devices() == ()
    assert "nvml.unreadable reason=Unknown Error" in caplog.text
    assert broken.open == 0


def test_nvml_s_bindings_have_every_function_that_is_used() -> None:
    bindings = import_module("pynvml")
    used = {name: value for name, value in vars(NvmlLibrary).items() if name.startswith("nvml")}
    assert len(used) == 14
    for name, function in used.items():
        parameters = list(signature(function).parameters)[1:]
        signature(inspect.unwrap(getattr(bindings, name))).bind(*parameters)
    assert issubclass(bindings.NVMLError, Exception)
    assert bindings.NVML_CLOCK_SM == CLOCK_SM


def test_real_nvml_bindings_without_their_driver_library_have_no_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bindings = import_module("pynvml")

    def no_library(*_: object) -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(bindings, "nvmlLib", None)
    monkeypatch.setattr(bindings, "CDLL", no_library)
    assert NvmlProbe(lambda: cast(NvmlLibrary, bindings)).devices() == ()


def test_opencl_s_numbers_are_those_of_its_bindings() -> None:
    info = import_module("pyopencl").device_info
    assert {
        number: number for number in vars(opencl).values() if isinstance(number, int) and number > 0x1000
    } == {
        opencl.COMPUTE_UNITS: info.MAX_COMPUTE_UNITS,
        opencl.CLOCK_MHZ: info.MAX_CLOCK_FREQUENCY,
        opencl.MEMORY_BYTES: info.GLOBAL_MEM_SIZE,
        opencl.ERROR_CORRECTION: info.ERROR_CORRECTION_SUPPORT,
        opencl.NAME: info.NAME,
        opencl.VENDOR: info.VENDOR,
        opencl.DRIVER: info.DRIVER_VERSION,
        opencl.NVIDIA_MAJOR: info.COMPUTE_CAPABILITY_MAJOR_NV,
        opencl.NVIDIA_MINOR: info.COMPUTE_CAPABILITY_MINOR_NV,
        opencl.NVIDIA_PCI_BUS: info.PCI_BUS_ID_NV,
        opencl.NVIDIA_PCI_SLOT: info.PCI_SLOT_ID_NV,
        opencl.NVIDIA_PCI_DOMAIN: info.PCI_DOMAIN_ID_NV,
        opencl.AMD_TOPOLOGY: info.TOPOLOGY_AMD,
    }
    assert import_module("pyopencl").device_type.GPU == opencl.TYPE_GPU


@pytest.mark.parametrize(
    ("cores", "capability", "processors"),
    [
        (10_496, (8, 6), 82),
        (21_760, (12, 0), 170),
        (6912, (8, 0), 108),
        (16_896, (9, 0), 132),
        (2560, (7, 5), 40),
        (5120, (7, 0), 80),
        (3584, (6, 0), 56),
        (None, (8, 6), None),
        (0, (8, 6), None),
        (10_496, None, None),
        (10_496, (99, 0), None),
    ],
)
def test_multiprocessors_from_cuda_cores(
    cores: int | None, capability: tuple[int, int] | None, processors: int | None
) -> None:
    assert processors_of(cores, capability) == processors


def test_opencl_reads_cards_of_both_vendors() -> None:
    nvidia, amd = _opencl(FakePlatform([RTX_4090]), FakePlatform([MI300X])).devices()
    assert (nvidia.vendor, nvidia.pci_address, nvidia.compute_capability) == (
        "nvidia",
        "0000:65:00.0",
        (8, 9),
    )
    assert (nvidia.clock_khz, nvidia.clock_is_ceiling, nvidia.processors) == (2_520_000, False, 128)
    assert (amd.vendor, amd.pci_address, amd.compute_capability) == ("amd", "0000:e5:00.0", None)
    assert (amd.name, amd.processors, amd.ecc) == ("gfx942:sramecc+:xnack-", 304, True)
    assert (nvidia.index, amd.index) == (0, 0)


def test_opencl_shows_a_card_of_two_platforms_once() -> None:
    assert len(_opencl(FakePlatform([MI300X]), FakePlatform([MI300X])).devices()) == 1


def test_opencl_uuids_differ_between_nodes_and_slots() -> None:
    other_slot = {**MI300X, opencl.AMD_TOPOLOGY: SimpleNamespace(bus=5, device=0, function=0)}
    library = FakeOpenCl([FakePlatform([MI300X, other_slot])])
    here = {device.uuid for device in OpenClProbe(lambda: library, identity="node-a").devices()}
    there = {device.uuid for device in OpenClProbe(lambda: library, identity="node-b").devices()}
    assert len(here | there) == 4


def test_opencl_passes_over_a_platform_or_card_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    mute = {opencl.VENDOR: "Intel(R) Corporation"}
    devices = _opencl(FakePlatform(DriverError("DEVICE_NOT_FOUND")), FakePlatform([mute, RTX_4090])).devices()
    assert [device.vendor for device in devices] == ["nvidia"]
    assert "opencl.card_unreadable position=0" in caplog.text


def test_opencl_is_not_imported_where_no_platform_is_registered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(opencl, "_VENDOR_FOLDER", tmp_path)
    # Where PoCL is installed for the tests, its platform lies beside pyopencl.
    elsewhere = ModuleSpec("pyopencl", None, origin=str(tmp_path / "pyopencl" / "__init__.py"))
    monkeypatch.setattr(opencl, "find_spec", lambda name: elsewhere)
    assert opencl.load_opencl() is None
    (tmp_path / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    loaded = opencl.load_opencl()
    assert loaded is not None
    assert issubclass(loaded.Error, Exception)


def test_real_opencl_with_a_registered_but_missing_platform_has_no_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone.icd").write_text("/nonexistent/libOpenCL-gone.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    assert OpenClProbe().devices() == ()


def test_stand_ins_pass_the_numbers_of_their_model_and_are_labelled() -> None:
    catalog = Catalog.load()
    for model in catalog:
        (device,) = StandInProbe(model, 1).devices()
        assert device.stand_in_for == model.short_ref
        assert "stand-in" in device.name
        lowest, highest = catalog.limits.memory_range(model)
        assert lowest <= int(device.memory_bytes / 1e9) <= highest


@pytest.mark.parametrize("count", [-1, 0, 11])
def test_the_number_of_stand_ins_has_limits(count: int) -> None:
    with pytest.raises(InvalidInputError, match="1 to 10"):
        StandInProbe(Catalog.load().get("4090"), count)
