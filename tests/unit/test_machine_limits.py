"""The node's CPU device: what control groups take away is not promised to anyone."""

from pathlib import Path

import pytest

from gpupool.devices.cpu import CpuProbe
from gpupool.devices.machine import (
    cpu_description,
    machine_hash,
    rated_clock_khz,
    usable_cores,
    usable_memory_bytes,
)

GIB = 2**30


def _machine(root: Path, files: dict[str, str]) -> Path:
    for name, content in {"proc/meminfo": "MemTotal:       33554432 kB\nMemFree: 1 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_without_limits_all_ram_counts(tmp_path: Path) -> None:
    assert usable_memory_bytes(_machine(tmp_path, {})) == 32 * GIB


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "proc/self/cgroup": "0::/system.slice/gpupool.service\n",
                "sys/fs/cgroup/system.slice/gpupool.service/memory.max": "max\n",
                "sys/fs/cgroup/system.slice/memory.max": f"{8 * GIB}\n",
            },
            8,
        ),
        (
            {
                "proc/self/cgroup": "0::/system.slice/gpupool.service\n",
                "sys/fs/cgroup/system.slice/gpupool.service/memory.max": f"{2 * GIB}\n",
                "sys/fs/cgroup/system.slice/memory.max": f"{8 * GIB}\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}, 4),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{6 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            6,
        ),
        ({"proc/self/cgroup": "nonsense\n0\n\n"}, 32),
    ],
    ids=["v2 parent", "v2 own", "v2 namespace", "v1", "unreadable"],
)
def test_the_least_memory_limit_on_the_way_up_counts(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    root = _machine(tmp_path, files)
    assert usable_memory_bytes(root) == expected * GIB
    (device,) = CpuProbe(root).devices()
    assert device.memory_bytes == expected * GIB // 2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "2:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
    ],
    ids=["none", "v2", "v2 max", "v2 parent, below one", "v1", "v1 none"],
)
def test_cpu_quotas_bound_the_cores(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert usable_cores(_machine(tmp_path, files), allowed=16) == expected


def test_the_uuid_is_stable_and_does_not_show_the_machine_id(tmp_path: Path) -> None:
    root = _machine(tmp_path, {"etc/machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda4\n"})
    (first,), (second,) = CpuProbe(root).devices(), CpuProbe(root).devices()
    assert first.uuid == second.uuid == f"cpu-{machine_hash(root)}"
    assert "3d1219c7" not in first.uuid
    other = _machine(tmp_path / "other", {"etc/machine-id": "00000000000000000000000000000001\n"})
    assert machine_hash(other) != machine_hash(root)


def test_a_node_may_bring_its_own_identity(tmp_path: Path) -> None:
    (device,) = CpuProbe(_machine(tmp_path, {}), identity="node-7").devices()
    assert device.uuid == "cpu-node-7"


def test_a_machine_without_an_id_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "rig-1")
    first = machine_hash(tmp_path)
    monkeypatch.setattr("socket.gethostname", lambda: "rig-2")
    assert machine_hash(tmp_path) != first


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\n\nmodel name\t: other\n", ("AMD EPYC", "amd")),
        ("vendor_id : GenuineIntel\nmodel name : Xeon\n", ("Xeon", "intel")),
        ("CPU implementer : 0x41\n", ("arm processor", "arm")),
        ("", ("unknown processor", "unknown")),
    ],
)
def test_the_processor_is_named(tmp_path: Path, cpuinfo: str, expected: tuple[str, str]) -> None:
    assert cpu_description(_machine(tmp_path, {"proc/cpuinfo": cpuinfo})) == expected


def test_the_rated_clock_is_told_where_the_kernel_knows_it(tmp_path: Path) -> None:
    assert rated_clock_khz(_machine(tmp_path, {})) is None
    name = "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
    assert rated_clock_khz(_machine(tmp_path, {name: "3400000\n"})) == 3_400_000
