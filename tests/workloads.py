"""Small real workloads for tests: each is one ``python -c`` program that does one thing well or badly."""

import itertools
import textwrap
from typing import Any

from gpupool.fleet.ports.runtime import LaunchOrder

_numbers = itertools.count(1)

SERVER = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(dict(os.environ)).encode() if self.path == "/env" else b'{"status": "ok"}'
        self.send_response(STATUS if self.path == "/health" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler)
"""


def program(body: str, status: int = 200) -> tuple[str, ...]:
    """Return the command of a program; ``SERVER`` in front of it gives it ``server`` to run."""
    return ("python", "-c", textwrap.dedent(SERVER.replace("STATUS", str(status)) + textwrap.dedent(body)))


def bare(body: str) -> tuple[str, ...]:
    """Return the command of a program that is no server."""
    return ("python", "-c", textwrap.dedent(body))


HEALTHY = program("server.serve_forever()")
UNHEALTHY = program("server.serve_forever()", status=503)


def order(command: tuple[str, ...], **changes: Any) -> LaunchOrder:
    """Return a launch order with a placement id of its own."""
    values: dict[str, Any] = {
        "placement_id": f"pl-test{next(_numbers)}",
        "workload_name": "tested",
        "command": command,
        "memory_mib": 256,
        "grace_seconds": 5.0,
        "max_restarts": 0,
    }
    return LaunchOrder(**{**values, **changes})
