"""The sentences of `gpupool why`."""

from datetime import timedelta
from typing import Any

import pytest

from cli_samples import AT, placement, workload
from gpupool.cli.reasons import chute_lines, find_device, gpu_lines, node_lines
from gpupool.contracts.control import DeviceView, EventView, NodeView, RefusalView, WhyView
from gpupool.core.errors import InvalidInputError, NotFoundError
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import PlacementState


def node(**changes: Any) -> NodeView:
    base = {"id": "node-1", "name": "gpu-1", "address": "h", "state": "ready", "locked": False, "devices": 1}
    base |= {
        "draining": False,
        "hourly_usd": None,
        "runtimes": ["process"],
        "connected": True,
        "placements": 0,
    }
    return NodeView.model_validate({**base, "joined_at": AT, "seen_at": AT, **changes})


def gpu(**changes: Any) -> DeviceView:
    base = {"id": "GPU-1", "node_id": "node-1", "node": "gpu-1", "kind": "gpu", "name": "L4", "index": 0}
    base |= {"memory_mib": 24000, "free_mib": 24000, "short_ref": "l4", "failed_rules": [], "claims": []}
    base |= {"hourly_usd": None, "proof": "unproven", "stand_in": False, "present": True}
    return DeviceView.model_validate({**base, **changes})


def event(seq: int, kind: str, **data: Any) -> EventView:
    return EventView(seq=seq, kind=kind, subject="node-1", at=AT + timedelta(minutes=seq), data=data)


def why(*refusals: tuple[str, str], **changes: Any) -> WhyView:
    base = {"workload": "demo", "why": "no node takes it", "not_before": None, "would_go_to": None}
    told = [RefusalView(subject=subject, rule="r", detail=detail) for subject, detail in refusals]
    return WhyView.model_validate({**base, **changes, "refusals": told})


def test_a_chute_that_nobody_takes_is_told_each_reason_once() -> None:
    told = why(("node-1", "gpu-1 is locked"), ("node-1", "gpu-1 is locked"), ("GPU-1", "too small"))
    assert chute_lines(told, workload(), [node()]) == [
        "demo: 0 of 1 active, 0 placed",
        "as recorded: no node takes it",
        "no node takes another copy now:",
        "  gpu-1 is locked",
        "  too small",
    ]


def test_a_chute_that_waits_for_its_pause_says_until_when_and_where_to() -> None:
    told = why(why="failed 3 times in a row", not_before=AT + timedelta(seconds=8), would_go_to="node-1")
    assert chute_lines(told, workload(), [node()])[1:] == [
        "as recorded: failed 3 times in a row",
        "no new attempt before 00:00:08 UTC",
        "another copy would go to gpu-1",
    ]


def test_a_node_tells_its_last_move_and_who_set_it_aside() -> None:
    events = [
        event(1, "node.ready", reason="no proof asked"),
        event(2, "node.locked", by="operator@10.0.0.4"),
        event(3, "node.unreachable", reason="silent"),
        event(4, "node.changed"),
    ]
    seen = node(state=NodeState.UNREACHABLE, locked=True, connected=False, placements=2)
    assert node_lines(seen, events) == [
        "gpu-1: unreachable since 2026-01-01 00:03:00 UTC (silent)",
        "locked since 2026-01-01 00:02:00 UTC (operator@10.0.0.4)",
        "takes no new work; 2 deployment(s) are there",
        "its agent is not connected: see what it says on that machine",
    ]


def test_a_ready_and_a_removed_node_say_so() -> None:
    assert node_lines(node(placements=1), []) == ["gpu-1: ready", "takes work; 1 deployment(s) run there"]
    gone = [event(5, "node.removed", by="operator@127.0.0.1")]
    assert node_lines(node(state="removed", connected=False), gone) == [
        "gpu-1: removed since 2026-01-01 00:05:00 UTC (operator@127.0.0.1)"
    ]


def test_a_gpu_is_found_by_id_and_by_place() -> None:
    devices = [gpu(id="cpu-1", kind="cpu"), gpu(), gpu(id="GPU-2", index=1)]
    assert find_device(devices, "GPU-2") == find_device(devices, "gpu-1:1") == devices[2]
    assert find_device(devices, "gpu-1:0") == devices[1]
    with pytest.raises(NotFoundError, match="no GPU gpu-2:0"):
        find_device(devices, "gpu-2:0")
    with pytest.raises(InvalidInputError, match="names no GPU"):
        find_device(devices, "gpu-1:first")


def test_a_gpu_says_who_holds_it() -> None:
    held = {"placement_id": placement().id, "device_id": "GPU-1", "mode": "exclusive", "mib": 24000}
    owner = workload(placement(PlacementState.ACTIVE))
    assert gpu_lines(gpu(claims=[held]), [owner], []) == [
        "l4 (GPU-1) of gpu-1",
        "held by demo (exclusive, 24000 MiB)",
    ]
    assert gpu_lines(gpu(present=False), [], [])[1:] == ["was not in its node's last inventory"]


def test_an_idle_gpu_says_why_nobody_takes_it() -> None:
    assert gpu_lines(gpu(), [], [])[1:] == ["idle: every workload is as wanted"]
    waiting = [
        why(("GPU-1", "too small"), ("GPU-9", "other")),
        why(("GPU-9", "x"), would_go_to="node-9"),
        why(),
    ]
    assert gpu_lines(gpu(), [], waiting)[1:] == [
        "idle, and demo waits: too small",
        "idle, and demo waits: its next copy goes to another node",
        "idle, and demo waits: this GPU would do, its node lacks more",
    ]
