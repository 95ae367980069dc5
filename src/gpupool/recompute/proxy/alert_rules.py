"""What is worth waking somebody for, told from one look at the rows of `report`: pure, without memory.

How long something must last before it is told is `alarms`' business.
"""

from typing import Any, Final

from gpupool.recompute.proxy.report import UNUSABLE

NODE_DOWN: Final = "node_down"
NODE_SLOW: Final = "node_slow"
NO_NODE: Final = "no_node"
CLIENT_SILENT: Final = "client_silent"
LOOKUPS_LOST: Final = "lookups_lost"
HARVESTER_LOST: Final = "harvester_lost"
CONTROL_LOST: Final = "control_lost"
PEER_FACTOR: Final = 10.0
"""So many times slower than the middle of its peers is slow; unequal cards differ by less."""
LEAST_ANSWERS: Final = 20
_SERVING: Final = frozenset({"live", "starting"})

Troubles = dict[tuple[str, str], str]
"""Alert and subject -> what is wrong, in words."""


def troubles(
    nodes: list[dict[str, Any]],
    kinds: set[str],
    silent: dict[str, float],
    lost: int,
    harvesters: dict[str, str],
    control: str | None = None,
) -> Troubles:
    """Return everything that is wrong now.

    ``nodes``: rows of `Report.nodes`; ``kinds``: protocols that clients have used; ``silent``: client -> seconds;
    ``lost``: lookups without an answer in the last minute; ``harvesters``: client -> what its own library has lost;
    ``control``: why its feed cannot be followed.
    """
    found: Troubles = {}
    for row in nodes:
        if row["state"] in UNUSABLE and not row["draining"]:
            found[NODE_DOWN, row["name"]] = f"{row['state']}: {row['why'] or 'it fails'}"
        elif why := _slow(row, nodes):
            found[NODE_SLOW, row["name"]] = why
    for kind in kinds | {kind for row in nodes for kind in row["kinds"]}:
        if not any(kind in row["kinds"] and row["state"] in _SERVING for row in nodes):
            found[NO_NODE, kind] = f"no server is left that takes {kind}"
    if not any(row["kinds"] for row in nodes):
        found.setdefault((NO_NODE, "any"), "no server has been reached yet, or none is listed")
    for address, seconds in silent.items():
        found[CLIENT_SILENT, address] = f"no request for {seconds:.0f} s"
    if lost:
        found[LOOKUPS_LOST, "proxy"] = f"{lost} lookups had no answer within a minute"
    found |= {(HARVESTER_LOST, address): why for address, why in harvesters.items()}
    if control is not None:
        found[CONTROL_LOST, "control"] = control
    return found


def _slow(row: dict[str, Any], nodes: list[dict[str, Any]]) -> str:
    if row["state"] not in _SERVING or row["answered"] < LEAST_ANSWERS or row["p50_ms"] is None:
        return ""
    if row["slow"]:
        return f"three times slower than it usually is (p50 {row['p50_ms']:g} ms)"
    peers = [
        other["p50_ms"]
        for other in nodes
        if other is not row
        and other["kinds"] == row["kinds"]
        and other["state"] in _SERVING
        and other["p50_ms"] is not None
        and other["answered"] >= LEAST_ANSWERS
    ]
    middle = sorted(peers)[len(peers) // 2] if peers else row["p50_ms"]
    if row["p50_ms"] <= PEER_FACTOR * middle:
        return ""
    return f"p50 {row['p50_ms']:g} ms, where its peers take {middle:g} ms"
