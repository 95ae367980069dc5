"""Deploying ends at once where waiting cannot help, and a failure says what to do about that very failure."""

from typing import Any, cast

import pytest

from cli_samples import AT, workload
from gpupool.cli.deploying import NeverPlacedError, failure_remedy, wait_active
from gpupool.cli.prospects import never
from gpupool.contracts.control import DeviceView, NodeView, RefusalView, WhyView
from gpupool.contracts.control_client import ControlClient
from gpupool.contracts.spec import SpecFile
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.nodes import NodeState

NODE = NodeView(
    id="node-1",
    name="vm",
    address="127.0.0.1",
    state=NodeState.READY,
    locked=False,
    draining=False,
    hourly_usd=None,
    runtimes=["process"],
    connected=True,
    joined_at=AT,
    seen_at=AT,
    devices=1,
    placements=0,
)


def device(kind: DeviceKind = DeviceKind.CPU, **changes: Any) -> DeviceView:
    base: dict[str, Any] = {
        "id": f"{kind}-1",
        "node_id": "node-1",
        "node": "vm",
        "kind": kind,
        "name": "EPYC",
        "index": 0,
        "memory_mib": 8000,
        "free_mib": 8000,
        "short_ref": None,
        "failed_rules": [],
        "hourly_usd": None,
        "proof": "unproven",
        "stand_in": False,
        "present": True,
        "claims": [],
    }
    return DeviceView.model_validate({**base, **changes})


def spec(**changes: Any) -> SpecFile:
    return SpecFile.model_validate({"name": "demo", "command": ["sleep", "60"], "gpu_count": 0, **changes})


def refused(subject: str, rule: str) -> RefusalView:
    return RefusalView(subject=subject, rule=rule, detail=f"{subject} fails {rule}")


IMAGE = spec(command=[], image="nginx")
GPU = DeviceKind.GPU


def test_an_image_never_runs_where_no_node_has_a_container_runtime() -> None:
    assert never(IMAGE, [NODE], [device()], [refused("node-1", "runtime")]) == "node-1 fails runtime"


def test_an_image_may_run_on_another_node_that_is_only_full() -> None:
    other, there = NODE.model_copy(update={"id": "node-2"}), device(id="cpu-2", node_id="node-2")
    now = [refused("node-1", "runtime"), refused("cpu-2", "memory")]
    assert never(IMAGE, [NODE, other], [device(), there], now) is None


def test_a_pool_without_a_gpu_says_so() -> None:
    assert never(spec(gpu_count=1), [NODE], [device()], [refused("cpu-1", "kind")]) == "this pool has no GPU"


def test_a_card_of_another_model_never_fits() -> None:
    now = [refused("cpu-1", "kind"), refused("gpu-1", "include")]
    assert never(spec(gpu_count=1), [NODE], [device(), device(GPU)], now) == "gpu-1 fails include"


@pytest.mark.parametrize("rule", ["claimed", "absent"])
def test_a_card_that_is_taken_or_away_is_waited_for(rule: str) -> None:
    now = [refused("cpu-1", "kind"), refused("gpu-1", rule)]
    assert never(spec(gpu_count=1), [NODE], [device(), device(GPU)], now) is None


def test_two_cards_never_fit_where_there_is_one() -> None:
    now = [refused("cpu-1", "kind"), refused("node-1", "gpu_count")]
    assert never(spec(gpu_count=2), [NODE], [device(), device(GPU)], now) is not None


def test_more_memory_than_the_machine_has_never_fits() -> None:
    now = [refused("cpu-1", "memory")]
    assert never(spec(memory_mb=9000), [NODE], [device()], now) == "cpu-1 fails memory"
    assert never(spec(memory_mb=7000), [NODE], [device()], now) is None


def test_nodes_and_devices_that_are_yet_to_come_are_waited_for() -> None:
    assert never(IMAGE, [], [], [refused("fleet", "empty")]) is None
    assert never(IMAGE, [NODE], [], [refused("node-1", "cpu")]) is None


class OneCpu:
    """A pool with one node without a GPU, as the client of control shows it."""

    def workload(self, name: str) -> Any:
        return workload(spec=spec(gpu_count=1))

    def why(self, name: str) -> WhyView:
        return WhyView(
            workload=name, why=None, not_before=None, would_go_to=None, refusals=[refused("cpu-1", "kind")]
        )

    def nodes(self) -> list[NodeView]:
        return [NODE]

    def devices(self) -> list[DeviceView]:
        return [device()]


def test_waiting_ends_at_once_where_no_node_can_ever_take_it() -> None:
    with pytest.raises(NeverPlacedError) as ended:
        wait_active(cast("ControlClient", OneCpu()), "demo", 600, print)
    assert ended.value.exit_code == 5
    assert "this pool has no GPU" in ended.value.message
    assert "demo stays wanted; `gpupool chute delete demo` takes it back" in ended.value.remedy


@pytest.mark.parametrize(
    ("reason", "wrote", "says"),
    [
        ("launch: there is no program sleeep", False, "Correct the command"),
        ("memory: used 900 MiB of 128", True, "Raise `memory_mb`"),
        ("unhealthy: not healthy within 5 s, last: HTTP 404", True, "Check `health`"),
        ("unhealthy: not healthy within 5 s, last: HTTP 500", True, "chute logs demo"),
        ("exit: code 1 after 0.1 s", True, "chute logs demo"),
        ("exit: code 1 after 0.1 s", False, "has written nothing"),
    ],
)
def test_the_remedy_is_that_of_the_reason(reason: str, wrote: bool, says: str) -> None:
    remedy = failure_remedy("demo", reason, wrote=wrote)
    assert says in remedy
    assert wrote or "logs" not in remedy
