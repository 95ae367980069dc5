"""Nodes as JSON, kept from one list to the next: of a thousand nodes few have changed since somebody asked last."""

from collections.abc import Sequence
from typing import Any, Final

from gpupool.control.links import Links
from gpupool.control.snapshot import Snapshot
from gpupool.control.views import node_view_of
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.nodes import Node

_MOST: Final = 20_000


class NodeLines:
    """Serialised nodes by id."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[Any, ...], bytes]] = {}

    def array(self, snapshot: Snapshot, links: Links, nodes: Sequence[Node]) -> bytes:
        """Return the nodes as a JSON array."""
        if len(self._kept) > _MOST:
            self._kept.clear()
        live: dict[str, int] = {}
        for placement in snapshot.live:
            live[placement.node_id] = live.get(placement.node_id, 0) + 1
        return b"[%s]" % b",".join(self._line(snapshot, links, node, live.get(node.id, 0)) for node in nodes)

    def _line(self, snapshot: Snapshot, links: Links, node: Node, live: int) -> bytes:
        link, devices = links.get(node.id), snapshot.devices.get(node.id, ())
        # What was read stays as it is, so that the same objects mean the same view.
        facts = (node, devices, live, links.connected(node.id), link and link.heard_at)
        kept = self._kept.get(node.id)
        if kept is not None and kept[0][0] is node and kept[0][1] is devices and kept[0][2:] == facts[2:]:
            return kept[1]
        line = node_view_of(node, snapshot, links, live).model_dump_json().encode()
        self._kept[node.id] = (facts, line)
        return line


def has_gpu(snapshot: Snapshot, node: Node, model: str) -> bool:
    """Tell whether a node has a GPU of that model."""
    return any(
        device.present and device.kind is DeviceKind.GPU and (device.short_ref or device.name) == model
        for device in snapshot.devices.get(node.id, ())
    )
