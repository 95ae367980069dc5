"""The node's devices: discovery in a process of its own, and what a workload gets to see."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.agent.discovery import device_report, discover_reports
from gpupool.agent.inventory import Inventory, UnknownDeviceError, read_inventory
from gpupool.agent.settings import AgentSettings, default_node_name
from gpupool.catalog import Catalog
from gpupool.contracts.agent_link import DeviceReport
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.devices.inventory import judge
from gpupool.devices.probe import DeviceFacts
from gpupool.fleet.devices import DeviceKind


def gpu(name: str, index: int) -> DeviceReport:
    return DeviceReport(id=name, kind=DeviceKind.GPU, name="card", index=index, memory_mib=1)


async def test_every_machine_has_its_cpu(tmp_path: Path) -> None:
    found = await read_inventory(AgentSettings(home=tmp_path))
    cpus = [device for device in found.devices if device.kind is DeviceKind.CPU]
    assert len(cpus) == 1
    assert cpus[0].memory_mib > 0
    assert cpus[0].id.startswith("cpu-")


def test_two_nodes_on_one_machine_can_be_told_apart() -> None:
    names = {discover_reports(0, "", identity)[-1].id for identity in ("one", "two")}
    assert names == {"cpu-one", "cpu-two"}


async def test_a_stand_in_that_cannot_be_is_refused(tmp_path: Path) -> None:
    settings = AgentSettings(home=tmp_path, stand_in_gpus=1, stand_in_model="voodoo2")
    with pytest.raises(InvalidInputError, match="voodoo2"):
        await read_inventory(settings)


async def test_a_driver_that_hangs_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblemError, match="a driver hangs"):
        await read_inventory(AgentSettings(home=tmp_path), timeout=0.0)


def test_a_card_that_fails_a_number_is_reported_with_the_rule() -> None:
    facts = DeviceFacts(
        uuid="GPU-a",
        name="NVIDIA GeForce RTX 4090",
        vendor="nvidia",
        index=0,
        memory_bytes=48 << 30,
        source="nvml",
    )
    report = device_report(judge(facts, Catalog.load(), 1))
    assert report.short_ref is None
    assert report.failed_rules != []
    assert report.memory_mib == 48 * 1024


def test_uuids_are_used_only_where_every_card_has_one() -> None:
    inventory = Inventory((gpu("GPU-a", 0), gpu("amd-1", 1)))
    assert inventory.visible(["GPU-a"]) == ((0,), ("GPU-a",))
    assert inventory.visible(["GPU-a", "amd-1"]) == ((0, 1), ())
    assert inventory.visible([]) == ((), ())
    with pytest.raises(UnknownDeviceError):
        inventory.visible(["GPU-b"])


def test_the_agent_itself_loads_no_driver_and_no_server() -> None:
    heavy = (
        "pynvml",
        "pyopencl",
        "numpy",
        "fastapi",
        "sqlalchemy",
        "uvicorn",
        "gpupool.catalog",
        "gpupool.devices",
    )
    program = f"import sys, gpupool.agent.main; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("host", "name"),
    [("Miner_07.lan", "miner-07"), ("---", "node"), ("x" * 80, "x" * 63), ("GPU Box", "gpu-box")],
)
def test_a_host_name_is_made_fit(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert default_node_name() == name


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x/path", "http://u:p@x", "http://x?q=1", "x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="control_url"):
        AgentSettings(control_url=url)


def test_half_a_stand_in_is_refused() -> None:
    with pytest.raises(ValueError, match="development mode needs both"):
        AgentSettings(stand_in_gpus=1)
