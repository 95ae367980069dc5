"""Ten thousand agents in one cheap process: real signed requests over kept connections, and nothing else of an agent.

Each has two connections, as the real one does: one for its reports, and one on which it listens for commands. It tells
everything at each connect, beats at its own moment of the period, and after a break waits as `gpupool.agent.backoff` says.
Answers on its standard input (one word a line) with one line of JSON each: ``stats`` what has happened since the last one.
"""

import argparse
import asyncio
import gc
import hashlib
import json
import secrets
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpupool.agent.backoff import Backoff
from gpupool.contracts.agent_link import ReportReply
from gpupool.core.ids import new_id
from gpupool.core.keys import SigningKey

REPORTS, COMMANDS = "/v1/agent/reports", "/v1/agent/commands?after=0"
PATIENCE = 10.0
"""Seconds until an answer counts as lost, as in the real agent."""
STABLE = 5.0
TELEMETRY_SHARE = 10
"""One node in so many runs something, and measures its speed at each beat."""


def key_of(number: int) -> SigningKey:
    """Return the key of the agent with this number."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"agent %d" % number).digest()))


def node_id(number: int) -> str:
    """Return the id of its node."""
    return f"node-{number:05d}"


class Wire(asyncio.Protocol):
    """One HTTP connection; answers go to ``heard`` as (status, body) where they have a length, else piece by piece."""

    def __init__(
        self, opened: Callable[[], None], heard: Callable[[int, bytes], None], lost: Callable[[], None]
    ):
        self._opened, self._heard, self._lost = opened, heard, lost
        self._got = b""
        self._endless = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say so."""
        self.transport = transport  # type: ignore[assignment]
        self._opened()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so."""
        self.transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Hand on what is whole."""
        if self._endless:
            self._heard(200, data)
            return
        self._got += data
        head, split, body = self._got.partition(b"\r\n\r\n")
        if not split:
            return
        status, lower = int(head[9:12]), head.lower()
        if b"content-length:" not in lower:
            self._endless, self._got = True, b""
            self._heard(status, body)
            return
        length = int(lower.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(body) >= length:
            self._got = body[length:]
            self._heard(status, body[:length])


class Fleet:
    """What all agents share: where control is, and what was seen."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.host, self.port, self.period = "127.0.0.1", given.port, given.period
        self.streams, self.telemetry = given.streams, given.telemetry
        self.loop = asyncio.get_running_loop()
        self.synced: set[int] = set()
        self.syncs: list[float] = []
        self.open_streams = 0
        self.forget()

    def forget(self) -> None:
        """Begin to count anew."""
        self.spans: list[float] = []
        self.full_spans: list[float] = []
        self.attempts = self.refused = self.late = self.forgotten = self.lines = self.unopened = 0

    def stats(self) -> dict[str, object]:
        """Return what was seen since the last call."""
        spans, full = sorted(self.spans), sorted(self.full_spans)
        seen = {
            "at": time.monotonic(),
            "synced": len(self.synced),
            "last_sync": max(self.syncs, default=0.0),
            "syncs": self.syncs,
            "streams": self.open_streams,
            "lines": self.lines,
            "beats": len(spans),
            "beat_ms": [round(at(spans, share) * 1e3, 2) for share in (0.5, 0.99, 1.0)],
            "full_ms": [round(at(full, share) * 1e3, 2) for share in (0.5, 0.99, 1.0)],
            "connects": self.attempts,
            "unopened": self.unopened,
            "refused": self.refused,
            "late": self.late,
            "forgotten": self.forgotten,
            "cpu": time.process_time(),
        }
        self.syncs = []
        self.forget()
        return seen


def at(values: list[float], share: float) -> float:
    """Return the value below which ``share`` of them lie."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


class Agent:
    """One of them."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        self.number, self._fleet, self._key = number, fleet, key_of(number)
        self._backoff = Backoff()
        self._draw = Random(number)
        self._wire: Wire | None = None
        self._stream: Wire | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._session = ""
        self._began = self._asked = 0.0
        self._complete = False
        self._spread = 0.0
        self._opening: asyncio.Future[None] | None = None

    def connect(self) -> None:
        """Open the connection for reports."""
        self._began = time.monotonic()
        self._session = f"s-{time.monotonic_ns():020d}-{secrets.token_hex(4)}"
        self._fleet.attempts += 1
        self._opening = asyncio.ensure_future(self._open(self._opened, self._heard, "_wire"))

    async def _open(self, opened: Callable[[], None], heard: Callable[[int, bytes], None], name: str) -> None:
        fleet = self._fleet
        wire = Wire(opened, heard, lambda: self._lost(name))
        setattr(self, name, wire)
        # Many addresses, since one has no more than some 28,000 ports, and those of earlier connections rest a minute.
        local = (f"127.0.{1 + (name == '_stream')}.{1 + self.number % 200}", 0)
        try:
            await fleet.loop.create_connection(lambda: wire, fleet.host, fleet.port, local_addr=local)
        except OSError:
            fleet.unopened += 1
            self._lost(name)

    def _opened(self) -> None:
        self._report(complete=True)

    def _report(self, *, complete: bool) -> None:
        self._complete = complete
        number = self.number
        values: dict[str, object] = {
            "report_id": new_id("rep"),
            "sent_at": datetime.now(UTC).isoformat(),
            "session": self._session,
            "boot_id": "b-1",
        }
        if complete:
            values |= {"complete": True, "devices": [device(number)], "acknowledged": 0}
        if number % TELEMETRY_SHARE == 0 and self._fleet.telemetry:
            values["placements"] = [
                {
                    "placement_id": f"pl-{number:05d}",
                    "state": "active",
                    "port": 30000,
                    "rate": round(100 * self._draw.uniform(0.99, 1.01), 3),
                    "memory_mib": self._draw.randrange(4000, 5000),
                }
            ]
        body = json.dumps(values).encode()
        self._asked = time.monotonic()
        self._send(self._wire, "POST", REPORTS, body)
        self._later(PATIENCE, self._give_up)

    def _send(self, wire: Wire | None, method: str, target: str, body: bytes) -> None:
        if wire is None or wire.transport is None:
            return
        signed = self._key.headers(node_id(self.number), method, target, body, int(time.time()))
        lines = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
        head = f"{method} {target} HTTP/1.1\r\nHost: control\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        wire.transport.write(head.encode() + body)

    def _heard(self, status: int, body: bytes) -> None:
        fleet, span = self._fleet, time.monotonic() - self._asked
        if status != 200:
            fleet.refused += 1
            self._break()
        elif self._complete:
            fleet.full_spans.append(span)
            self._spread = ReportReply.model_validate_json(body).spread_seconds
            if self.number not in fleet.synced:
                fleet.synced.add(self.number)
                fleet.syncs.append(time.monotonic())
            if self.number < fleet.streams:
                self._opening = asyncio.ensure_future(self._open(self._listening, self._command, "_stream"))
            self._later(self._draw.uniform(0, fleet.period), self._beat)
        elif b'"session_known":false' in body:
            fleet.forgotten += 1
            self._break()
        else:
            fleet.spans.append(span)
            self._later(max(0.0, fleet.period - span), self._beat)

    def _beat(self) -> None:
        self._report(complete=False)

    def _listening(self) -> None:
        self._fleet.open_streams += 1
        self._send(self._stream, "GET", COMMANDS, b"")

    def _command(self, status: int, data: bytes) -> None:
        self._fleet.lines += data.count(b"\n")

    def _give_up(self) -> None:
        self._fleet.late += 1
        self._break()

    def _lost(self, name: str) -> None:
        if name == "_stream" and self._stream is not None:
            self._fleet.open_streams -= 1
        if getattr(self, name) is not None:
            setattr(self, name, None)
            self._break()

    def _break(self) -> None:
        """End the session and come back after a pause, as the real agent does."""
        if time.monotonic() - self._began >= STABLE:
            self._backoff.reset()
        self._fleet.synced.discard(self.number)
        for wire in (self._wire, self._stream):
            if wire is not None and wire.transport is not None:
                wire.transport.abort()
        if self._stream is not None:
            self._fleet.open_streams -= 1
        self._wire = self._stream = None
        self._later(self._backoff.next(self._spread), self.connect)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._fleet.loop.call_later(seconds, act)


def device(number: int) -> dict[str, object]:
    """Return what its node has."""
    return {
        "id": f"gpu-{number:05d}",
        "kind": "gpu",
        "name": "NVIDIA L4",
        "index": 0,
        "memory_mib": 23034,
        "short_ref": "l4",
    }


async def run(given: argparse.Namespace) -> None:
    """Connect all within the time given, then answer until the input ends."""
    fleet = Fleet(given)
    agents = [Agent(number, fleet) for number in range(given.nodes)]
    draw = Random(1)
    for agent in agents:
        fleet.loop.call_later(draw.uniform(0, given.spread), agent.connect)
    reader = asyncio.StreamReader()
    await fleet.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        print(json.dumps(fleet.stats()), flush=True)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True, help="Agents that listen for commands.")
    parser.add_argument("--period", type=float, required=True, help="Seconds between beats.")
    parser.add_argument("--spread", type=float, default=20.0, help="Seconds within which they first connect.")
    parser.add_argument(
        "--telemetry", action="store_true", help="One in ten measures something at each beat."
    )
    # Its pauses would be taken for control's.
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
