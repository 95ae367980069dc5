"""The page of limits says what the code does."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from gpupool.cli import node_list_file
from gpupool.contracts import agent_link, bad_heads, recompute
from gpupool.contracts.alert_file import MOST_TARGETS
from gpupool.contracts.alerts import LONGEST_SILENCE_SECONDS
from gpupool.contracts.control import ScaleRequest
from gpupool.contracts.nodes import InviteRequest
from gpupool.contracts.spec import MAX_DEPTH, MAX_SPEC_BYTES, SpecFile
from gpupool.control import inviting, joining, wanting
from gpupool.control.hotkeys import MAX_HOTKEYS
from gpupool.control.http import limits, signatures
from gpupool.control.http.guard import MINER_BURST
from gpupool.control.miner.adding import PATIENCE_SECONDS
from gpupool.control.routes import alerts, paging
from gpupool.control.serving import MAX_HEAD_BYTES
from gpupool.control.settings import ControlSettings
from gpupool.core.keys import MAX_SKEW_SECONDS
from gpupool.core.nesting import MOST_LEVELS
from gpupool.gateway import forwarding, reading, streams
from gpupool.gateway.settings import GatewaySettings
from gpupool.harvester import chia_config
from gpupool.recompute.proxy import admin_http, alarms, alerting, local_socket, orders, shim_reports, tallies
from gpupool.recompute.server import answers, suitability
from gpupool.recompute.server import cards as server_cards
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.runtimes.process import clearing, output, threshold
from gpupool.validators.chutes.management import NONCE_SECONDS

LIMITING = ("maximum", "maxLength", "maxItems", "maxProperties")


def bound(model: type[BaseModel], field: str) -> int:
    """Return the largest value, or length, of a field."""
    schema = model.model_json_schema()["properties"][field]
    found = [part[key] for part in schema.get("anyOf", [schema]) for key in LIMITING if key in part]
    assert len(found) == 1, f"{field} has no limit"
    return int(found[0])


LIMITS = {
    "headers together": limits.MAX_HEADER_BYTES,
    "number of headers": limits.MAX_HEADERS,
    "path with query": limits.MAX_TARGET_BYTES,
    "request head that is no HTTP": MAX_HEAD_BYTES,
    "body": limits.MAX_BODY_BYTES,
    "body of an agent's report": agent_link.MAX_REPORT_BYTES,
    "body of an agent's log answer": agent_link.MAX_LOG_BYTES,
    "body of a request to the miner API": limits.MAX_MINER_BODY_BYTES,
    "nesting of JSON": MOST_LEVELS,
    "items a page (`limit`)": paging.MAX_LIMIT,
    "seconds a long poll waits (`wait`)": int(paging.MAX_WAIT),
    "workloads that are wanted": wanting.MAX_WORKLOADS,
    "nodes": joining.MAX_NODES,
    "join tokens that lie unused": inviting.MAX_OPEN,
    "machines that one join token is good for": bound(InviteRequest, "uses"),
    "hours that a join token is good for": bound(InviteRequest, "valid_hours"),
    "a file of nodes to add": node_list_file.MAX_BYTES,
    "nodes in such a file": node_list_file.MAX_ENTRIES,
    "silences": alerts.MOST_SILENCES,
    "seconds of a silence": LONGEST_SILENCE_SECONDS,
    "targets in `alerts.yaml`": MOST_TARGETS,
    "devices in a report": bound(agent_link.Report, "devices"),
    "placements in a report": bound(agent_link.Report, "placements"),
    "nonces remembered for a node": signatures.NONCES_PER_NODE,
    "clock difference of a signed request": MAX_SKEW_SECONDS,
    "clock difference of a request that a hotkey signs": NONCE_SECONDS,
    "hotkeys that may ask": MAX_HOTKEYS,
    "requests at once to the miner API from one address": MINER_BURST,
    "seconds that `add-node` tells of progress": int(PATIENCE_SECONDS),
    "the file": MAX_SPEC_BYTES,
    "nesting": MAX_DEPTH,
    "`command`": bound(SpecFile, "command"),
    "`env`": bound(SpecFile, "env"),
    "`models`, `include`, `exclude`": bound(SpecFile, "models"),
    "`replicas`": bound(SpecFile, "replicas"),
    "`gpu_count`": bound(SpecFile, "gpu_count"),
    "`memory_mb`": bound(SpecFile, "memory_mb"),
    "`start_timeout`": bound(SpecFile, "start_timeout"),
    "`grace`": bound(SpecFile, "grace"),
    "`max_restarts`": bound(SpecFile, "max_restarts"),
    "model name": reading._MAX_MODEL_CHARACTERS,
    "one event of a stream": streams.MAX_EVENT_BYTES,
    "an answer that is no stream": forwarding.MAX_REPLY_BYTES,
    "`X-Deadline-Ms`": recompute.MAX_DEADLINE_MS,
    "requests that wait": RecomputeServerSettings.model_fields["recompute_queue_room"].default,
    "answers that are remembered": answers.ENTRIES,
    "cards that may fail over one question": suitability.CARD_TRIES,
    "looking for cards, for each maker": int(server_cards.LOOK_SECONDS),
    "a workload's output": output.MOST_BYTES,
    "answer to a request for its output": output.MOST_TAIL_BYTES,
    "outputs kept after an end": clearing.KEPT_OUTPUTS,
    "open files of a workload": threshold._MOST_FILES,
    "body of a command": admin_http.BODY_LIMIT,
    "head of a command": admin_http.HEAD_LIMIT,
    "commands at once": admin_http.MOST_CONNECTIONS,
    "nodes about which something was said by command": orders.MOST_ORDERS,
    "clients remembered": tallies.CLIENTS_KEPT,
    "nodes remembered": tallies.NODES_KEPT,
    "events of an alert": alarms.MOST_EVENTS,
    "alerts that wait for their hook": alerting.MOST_WAITING,
    "`X-Shim-Failures`": shim_reports.LONGEST,
    "harvester processes of a client whose losses are remembered": shim_reports.PROCESSES_KEPT,
    "path of the sidecar's socket": local_socket.LONGEST,
    "Chia's `config.yaml`": chia_config.MOST_BYTES,
}


def cells(checkout: Path) -> dict[str, list[str]]:
    page = (checkout / "docs" / "reference" / "limits.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


@pytest.mark.parametrize("what", LIMITS)
def test_the_page_names_the_limit_of_the_code(checkout: Path, what: str) -> None:
    first = re.match(r"\d+", cells(checkout)[what][0])
    assert first is not None
    assert int(first.group()) == LIMITS[what]


def test_the_other_columns_are_right(checkout: Path) -> None:
    body = cells(checkout)["body"]
    assert [int(cell.split()[0]) for cell in body[1:]] == [reading.MAX_BODY_BYTES, recompute.BODY_LIMIT]


def test_the_other_columns_of_heads_and_nesting_are_right(checkout: Path) -> None:
    table = cells(checkout)
    assert [int(cell.split()[0]) for cell in table["number of headers"][1:]] == [bad_heads.MAX_HEADERS] * 2
    for what in ("path with query", "request head that is no HTTP"):
        assert [int(cell.split()[0]) for cell in table[what][1:]] == [bad_heads.MAX_LINE_BYTES] * 2
    together = f"{bad_heads.MAX_HEADERS} of {bad_heads.MAX_LINE_BYTES} bytes each (431)"
    assert table["headers together"][1:] == [together] * 2
    assert [int(cell.split()[0]) for cell in table["nesting of JSON"][1:]] == [
        reading.MOST_LEVELS,
        MOST_LEVELS,
    ]


def test_the_times_are_those_of_the_settings(checkout: Path) -> None:
    table, control, gateway = cells(checkout), ControlSettings.model_fields, GatewaySettings.model_fields
    assert [seconds(cell) for cell in table["time for a body"][:2]] == [
        control["control_body_seconds"].default,
        gateway["gateway_body_seconds"].default,
    ]
    assert [seconds(cell) for cell in table["time for a head, from its connection on"][:2]] == [
        control["control_head_seconds"].default,
        gateway["gateway_idle_seconds"].default,
    ]
    assert seconds(table["time between two requests"][1]) == gateway["gateway_idle_seconds"].default


def seconds(cell: str) -> float:
    return float(cell.split(maxsplit=1)[0])


def test_scaling_has_the_limit_of_the_spec() -> None:
    assert bound(ScaleRequest, "wanted") == bound(SpecFile, "replicas")


def test_every_field_of_a_spec_that_can_grow_has_a_limit() -> None:
    growing = {
        name
        for name, field in SpecFile.model_fields.items()
        if any(kind in str(field.annotation) for kind in ("list", "dict", "int", "float"))
    }
    assert {"command", "env", "models", "include", "exclude", "replicas", "gpu_count"} <= growing
    assert all(bound(SpecFile, name) for name in growing)
