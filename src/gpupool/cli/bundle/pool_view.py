"""The pool as control tells it, for the bundle: its state and the last thousand events, or why it could not be had."""

from dataclasses import dataclass
from typing import Final

from gpupool.cli.bundle.contents import as_json
from gpupool.cli.bundle.redaction import without_values
from gpupool.cli.connect import control_url, operator_token
from gpupool.core.errors import GpupoolError
from gpupool.core.home import Home

EVENTS: Final = 1000
_ANSWER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PoolTold:
    """What control said."""

    files: dict[str, bytes]


def ask_pool(home: Home) -> PoolTold:
    """Return the pool's view and events as files; one file that says why, where control cannot be asked."""
    from gpupool.contracts.control_client import ControlClient

    try:
        token = operator_token(home)
        with ControlClient(control_url(None, home), token, answer_seconds=_ANSWER_SECONDS) as client:
            pool = client.pool()
            events = client.events(after=max(0, pool.last_event_seq - EVENTS), limit=EVENTS)
    except GpupoolError as error:
        told = {"code": error.code, "message": error.message, "remedy": error.remedy}
        return PoolTold({"pool.json": as_json({"error": told})})
    view = pool.model_dump(mode="json")
    specs = [workload["spec"] for workload in view["workloads"]]
    masked = [{**spec, "env": without_values(spec.get("env") or {})} for spec in specs]
    for workload, spec in zip(view["workloads"], masked, strict=True):
        workload["spec"] = spec
    lines = "".join(f"{event.model_dump_json()}\n" for event in events)
    return PoolTold({"pool.json": as_json(view), "events.jsonl": lines.encode()})
