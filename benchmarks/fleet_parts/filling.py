"""A pool of many nodes, put into its database at once: joining is not what is measured."""

from datetime import UTC, datetime
from typing import Any

from benchmarks.fleet_parts.agents import TELEMETRY_SHARE, device, key_of, node_id
from sqlalchemy import Table, insert

from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.workloads import Protocol, Workload, WorkloadKind, WorkloadSpec
from gpupool.store.codecs import encode_device, encode_node, encode_placement, encode_workload
from gpupool.store.open import Where, open_database
from gpupool.store.tables import CLAIMS, DEVICES, NODES, PLACEMENTS, WORKLOADS

_AT_ONCE = 1000


async def fill(where: Where, nodes: int) -> None:
    """Put ``nodes`` nodes of one GPU each into an empty database; every tenth runs a recompute server."""
    now = datetime.now(UTC)
    spec = WorkloadSpec(
        name="rec", kind=WorkloadKind.RECOMPUTE, protocol=Protocol.RECOMPUTE, command=("serve",)
    )
    running = (nodes + TELEMETRY_SHARE - 1) // TELEMETRY_SHARE
    workload = Workload(id="wl-1", version=1, spec=spec, wanted=running, created_at=now)
    rows: dict[Table, list[dict[str, Any]]] = {WORKLOADS: [encode_workload(workload)]}
    rows |= {NODES: [], DEVICES: [], PLACEMENTS: [], CLAIMS: []}
    for number in range(nodes):
        node = Node(
            id=node_id(number),
            name=f"gpu-{number:05d}",
            public_key=key_of(number).public_text,
            address=f"10.{number >> 8 & 255}.{number & 255}.1",
            state=NodeState.UNREACHABLE,
            joined_at=now,
            seen_at=now,
        )
        facts: dict[str, Any] = {**device(number), "kind": DeviceKind.GPU}
        shown = Device(**facts, node_id=node.id)
        rows[NODES].append(encode_node(node))
        rows[DEVICES].append(encode_device(shown))
        if number % TELEMETRY_SHARE == 0:
            placement = Placement(
                id=f"pl-{number:05d}",
                workload_id=workload.id,
                workload_version=1,
                node_id=node.id,
                state=PlacementState.ACTIVE,
                port=30000,
                rate=100.0,
                created_at=now,
                changed_at=now,
            )
            rows[PLACEMENTS].append(encode_placement(placement))
            claim = {"mode": "exclusive", "mib": shown.memory_mib, "priority": 0}
            rows[CLAIMS].append(claim | {"placement_id": placement.id, "device_id": shown.id})
    database = await open_database(where)
    async with database.writers.begin() as connection:
        for table, lines in rows.items():
            for first in range(0, len(lines), _AT_ONCE):
                await connection.execute(insert(table), lines[first : first + _AT_ONCE])
    await database.readers.dispose()
    await database.writers.dispose()
