"""Write the reference page of the proxy's metrics from the families themselves, so that the two can't differ.

Run `python scripts/generate_proxy_metrics_page.py` after a change of a family; a test compares the page with it.
"""

from pathlib import Path
from typing import Final

from gpupool.recompute.proxy.metrics import FAMILIES, PREFIX
from gpupool.recompute.proxy.tallies import BOUNDS_MS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "proxy-metrics.md"
LABELS: Final = {
    "requests_total": "kind, result", "request_seconds": "kind", "under_way": "kind", "waiting": "kind",
    "attempts_total": "kind", "retries_total": "kind", "hedges_total": "kind", "nodes": "kind",
    "node_state": "node, kind, state", "node_attempts_total": "node, kind, outcome",
    "node_in_flight": "node, kind", "node_limit": "node, kind", "node_weight": "node, kind",
    "node_p50_seconds": "node, kind", "node_p99_seconds": "node, kind", "node_slow": "node, kind",
    "node_answered_total": "node", "node_failed_total": "node", "node_connections": "node", "node_up": "node",
    "node_request_seconds": "node",
}  # fmt: skip
WORDS: Final = """# Metrics of the recompute proxy

`GET /metrics` on the port of the clients, in the text format of Prometheus 0.0.4. No address of a client stands there:
who called is told by [`gpupool recompute clients`](cli.md) on the machine of the proxy.

<!-- Made by scripts/generate_proxy_metrics_page.py; edits here are lost. -->

| label | values |
|---|---|
| `kind` | `frames` (Gigahorse clients and servers), `http` (ours) |
| `result` | `ok`; `deadline`: no server answered in time; `overload`: too many waited; `refused`: all servers declined; |
| | `left`: the client closed first |
| `outcome` | `ok`, `failed`, `timed_out`, `wrong`, `cancelled` (another was faster, or the client left) |
| `state` | `live`, `starting`, `draining`, `ejected`, `quarantined`, `leaving` |
| `node` | `host:port` |

Histograms have `_bucket` (`le`, in seconds), `_sum` and `_count`. The edges are
{bounds} s.

| metric | type | labels | what |
|---|---|---|---|
"""
ENDING: Final = """
Counters begin at 0 with each process. A node that is taken out takes its series with it.

## What to watch

| question | expression |
|---|---|
| are lookups lost? | `rate(gpupool_proxy_requests_total{result=~"deadline\\|overload"}[5m]) > 0` |
| is a server down? | `gpupool_proxy_node_up == 0` |
| is a server slow? | `gpupool_proxy_node_slow == 1` |
| did a harvester go silent? | `gpupool_proxy_clients_silent > 0` |
| share of requests asked twice | `rate(gpupool_proxy_hedges_total[5m]) / rate(gpupool_proxy_attempts_total[5m])` |
| 99th percentile | `histogram_quantile(0.99, rate(gpupool_proxy_request_seconds_bucket[5m]))` |

The proxy itself tells the first four without any of this: see [alerts](../how-to/watch-a-proxy.md#alerts).
"""


def page() -> str:
    """Return the page as Markdown."""
    bounds = ", ".join(f"{bound / 1000:g}" for bound in BOUNDS_MS)
    rows = [
        f"| `{PREFIX}{family}` | {kind} | {LABELS.get(family, '')} | {words} |"
        for family, (kind, words) in FAMILIES.items()
    ]
    return WORDS.replace("{bounds}", bounds) + "\n".join(rows) + "\n" + ENDING


if __name__ == "__main__":
    PAGE.write_text(page())
