"""How fast the embedded store reads and commits on this machine, on a disk of your choice.

    python benchmarks/store.py [--folder FOLDER] [--seconds 3]

A commit is on disk before it counts (WAL, synchronous=FULL), so the folder's disk decides most of that number.
"""

import argparse
import asyncio
import math
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from gpupool.core.ids import new_id
from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.events import Event
from gpupool.fleet.nodes import Node
from gpupool.fleet.placements import Placement
from gpupool.fleet.ports.store import Store
from gpupool.fleet.workloads import Protocol, Workload, WorkloadKind, WorkloadSpec
from gpupool.store.open import open_store, run_migration

NODES = 100
NOW = datetime.now(UTC)
Act = Callable[[], Awaitable[object]]


async def fill(store: Store) -> tuple[Node, Workload]:
    """Keep a small fleet: nodes with one GPU each, one workload, a live placement on every node."""
    spec = WorkloadSpec(name="chat", kind=WorkloadKind.CHUTE, protocol=Protocol.OPENAI, command=("serve",))
    workload = Workload(id=new_id("wl"), version=1, spec=spec, created_at=NOW)
    nodes = [
        Node(id=new_id("node"), name=name, public_key=name, address="10.0.0.1", joined_at=NOW, seen_at=NOW)
        for name in (f"node{number}" for number in range(NODES))
    ]
    async with store.write() as writer:
        await writer.put_workload(workload)
        for node in nodes:
            await writer.put_node(node)
            device = Device(
                id=new_id("dev"), node_id=node.id, kind=DeviceKind.GPU, name="L4", index=0, memory_mib=23_034
            )
            await writer.put_device(device)
            placement = placed(node, workload)
            await writer.put_placement(placement)
            await writer.claim(
                Claim(placement_id=placement.id, device_id=device.id, mode=ClaimMode.EXCLUSIVE, mib=23_034)
            )
    return nodes[0], workload


def placed(node: Node, workload: Workload) -> Placement:
    """Return a new placement of the workload on the node."""
    return Placement(
        id=new_id("pl"),
        workload_id=workload.id,
        workload_version=1,
        node_id=node.id,
        created_at=NOW,
        changed_at=NOW,
    )


async def measure(name: str, act: Act, seconds: float, at_once: int) -> None:
    """Repeat ``act`` in ``at_once`` tasks for ``seconds`` and print rate, median and 99th percentile."""
    spans: list[float] = []
    end = time.perf_counter() + seconds

    async def repeat() -> None:
        while (start := time.perf_counter()) < end:
            await act()
            spans.append(time.perf_counter() - start)

    begun = time.perf_counter()
    await asyncio.gather(*(repeat() for _ in range(at_once)))
    rate = len(spans) / (time.perf_counter() - begun)
    spans.sort()
    p50, p99 = spans[len(spans) // 2], spans[math.ceil(len(spans) * 0.99) - 1]
    print(f"{name:34} x{at_once:<3} {rate:9.0f}/s   p50 {p50 * 1e3:7.2f} ms   p99 {p99 * 1e3:7.2f} ms")


async def run(folder: Path, seconds: float) -> None:
    """Make a database in ``folder`` and measure the store on it."""
    path = folder / "pool.db"
    await run_migration(path)
    store = await open_store(path)
    node, workload = await fill(store)

    async def one_node() -> object:
        async with store.read() as view:
            return await view.node(node.id)

    async def all_placements() -> object:
        async with store.read() as view:
            return await view.placements(live=True)

    async def one_event() -> object:
        async with store.write() as writer:
            return await writer.emit(Event(kind="bench.wrote", subject=node.id, at=NOW))

    async def one_placement() -> None:
        placement = placed(node, workload)
        async with store.write() as writer:
            await writer.put_placement(placement)
            await writer.emit(Event(kind="placement.planned", subject=placement.id, at=NOW))
            await writer.add_command(node.id, "launch", {"placement": placement.id})

    for at_once in (1, 16):
        await measure("read one node", one_node, seconds, at_once)
        await measure(f"read {NODES} placements", all_placements, seconds, at_once)
    for at_once in (1, 16):
        await measure("commit one event", one_event, seconds, at_once)
        await measure("commit placement, event, command", one_placement, seconds, at_once)
    await store.close()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on the disk to measure; default: a new folder here"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder or Path.cwd()) as folder:
        asyncio.run(run(Path(folder), arguments.seconds))


if __name__ == "__main__":
    main()
