"""What the gateway costs: time added to a request, streams held at once, and memory.

A scripted model server (one process) is asked directly and through the real gateway (another process) in turns, over
kept connections from one client, so that both see the same machine at the same time. Then many streams run through the
gateway at ten events a second each. Limits: p50 overhead below 0.7 ms at one client; no stream may fall behind.

    python benchmarks/gateway.py [--requests 3000] [--streams 200] [--seconds 5]
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import uvloop
from aiohttp import web

from gpupool.contracts.feed import EndpointsView, FeedEndpoint, FeedWorkload
from gpupool.core.home import Home
from gpupool.core.records import ProcessRecord
from gpupool.fleet.endpoints import EndpointHealth
from gpupool.fleet.workloads import Protocol

MODEL = "bench"
EVENTS_PER_SECOND = 10
BATCH = 100
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "What is gravity?" * 20}]})
STREAM_BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
REPLY = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "model": "/models/a.gguf",
        "choices": [{"message": {"content": "x" * 400}}],
    }
).encode()


def serve_upstream(pipe: Connection, seconds: float) -> None:
    """Be the model server and the feed in a process of its own; send the port and serve until terminated."""

    async def chat(request: web.Request) -> web.StreamResponse:
        if "stream" not in await request.json():
            return web.Response(body=REPLY, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        began = time.monotonic()
        for number in range(round(seconds * EVENTS_PER_SECOND)):
            await asyncio.sleep(began + number / EVENTS_PER_SECOND - time.monotonic())
            event = {
                "id": "c",
                "model": "/models/a.gguf",
                "sent": time.monotonic(),
                "choices": [{"delta": "word"}],
            }
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def main() -> None:
        app, view = web.Application(), ""

        async def feed(request: web.Request) -> web.Response:
            if "after" in request.query:
                await asyncio.sleep(float(request.query["wait"]))
            return web.Response(text=view, content_type="application/json")

        app.add_routes([web.post(PATH, chat), web.get("/v1/endpoints", feed)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
        port = runner.addresses[0][1]
        view = one_endpoint(f"127.0.0.1:{port}").model_dump_json()
        pipe.send(port)
        await asyncio.Event().wait()

    uvloop.run(main())


def one_endpoint(address: str) -> EndpointsView:
    """The feed's view of one model at ``address``."""
    workload = FeedWorkload(id="w", name="bench", models=[MODEL], wanted=1, state="active", created_at=1.0)
    endpoint = FeedEndpoint(
        id="e",
        placement="p",
        node="n",
        workload="w",
        models=[MODEL],
        protocol=Protocol.OPENAI,
        address=address,
        state="active",
        health=EndpointHealth.OK,
        concurrency=10_000,
    )
    return EndpointsView(revision=1, workloads=[workload], endpoints=[endpoint])


@contextmanager
def upstream(seconds: float) -> Iterator[str]:
    """Run the model server; give its URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_upstream, args=(theirs, seconds))
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


@contextmanager
def gateway(control: str, folder: Path) -> Iterator[ProcessRecord]:
    """Run the real gateway; give its record once it is ready."""
    home = Home(folder).prepare()
    home.service_token.write_text("bench\n")
    start = "from gpupool.cli.gateway import app; app()"
    command = [sys.executable, "-c", start, "serve", "--port", "0", "--control", control]
    began = time.monotonic()
    with subprocess.Popen(
        command, env=os.environ | {"GPUPOOL_HOME": str(folder)}, stderr=subprocess.DEVNULL
    ) as child:
        try:
            record = None
            while record is None or not is_ready(record):
                if child.poll() is not None or time.monotonic() - began > 30:
                    raise SystemExit("The gateway did not get ready.")
                time.sleep(0.01)
                record = ProcessRecord.read(home.run / "gateway.json")
            print(f"ready after             {time.monotonic() - began:8.2f} s")
            yield record
        finally:
            child.terminate()


def is_ready(record: ProcessRecord) -> bool:
    """Ask the gateway whether it has seen the feed."""
    connection = http.client.HTTPConnection(str(record.host), record.port, timeout=5)
    connection.request("GET", "/readyz")
    status = connection.getresponse().status
    connection.close()
    return status == 200


def resident_mib(pid: int) -> float:
    """Return a process's resident memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used; unlike waiting times it does not see other load."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_overhead(direct: str, through: str, requests: int) -> int:
    """Ask both in turns, print the medians, the tails and the difference; return how often the gateway was asked."""
    places = {name: urlsplit(url) for name, url in (("direct", direct), ("gateway", through))}
    connections = {
        name: http.client.HTTPConnection(str(place.hostname), place.port) for name, place in places.items()
    }
    times: dict[str, list[float]] = {name: [] for name in places}
    for turn in range(2 * (requests // BATCH) + 4):
        name = ("direct", "gateway")[turn % 2]
        taken = [ask(connections[name]) for _ in range(BATCH)]
        if turn >= 4:  # the first turns warm up
            times[name] += taken
    for name, taken in times.items():
        cuts = statistics.quantiles(taken, n=100)
        rate = 1 / statistics.mean(taken)
        print(f"{name:8} p50 / p99      {cuts[49] * 1e3:8.3f} / {cuts[98] * 1e3:.3f} ms  ({rate:.0f}/s)")
    overhead = statistics.median(times["gateway"]) - statistics.median(times["direct"])
    print(f"p50 overhead            {overhead * 1e3:8.3f} ms  (limit 0.7)")
    return len(times["gateway"]) + 2 * BATCH


def ask(connection: http.client.HTTPConnection) -> float:
    """Send one request; return the seconds until the whole answer is here."""
    began = time.perf_counter()
    connection.request("POST", PATH, BODY, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    reply.read()
    assert reply.status == 200
    return time.perf_counter() - began


async def measure_streams(name: str, url: str, streams: int) -> int:
    """Hold many streams at once, print how late their events are and return how many came."""

    async def one(session: aiohttp.ClientSession) -> list[float]:
        async with session.post(url + PATH, json=STREAM_BODY) as reply:
            return [
                time.monotonic() - json.loads(line[6:])["sent"]
                async for line in reply.content
                if line.startswith(b"data: {")
            ]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        delays = [
            late for each in await asyncio.gather(*(one(session) for _ in range(streams))) for late in each
        ]
    cuts = statistics.quantiles(delays, n=100)
    times = f"{cuts[49] * 1e3:.2f} / {cuts[98] * 1e3:.2f} ms"
    print(f"{name:8} {streams} streams, {len(delays)} events, delay p50 / p99 {times}")
    return len(delays)


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        upstream(given.seconds) as direct,
        gateway(direct, Path(folder)) as record,
    ):
        through, pid = str(record.url), record.process.pid
        print(f"memory at rest          {resident_mib(pid):8.1f} MiB")
        before = cpu_seconds(pid)
        asked = measure_overhead(direct, through, given.requests)
        print(f"CPU a request           {(cpu_seconds(pid) - before) / asked * 1e3:8.3f} ms")
        uvloop.run(measure_streams("direct", direct, given.streams))
        before = cpu_seconds(pid)
        events = uvloop.run(measure_streams("gateway", through, given.streams))
        print(f"CPU an event            {(cpu_seconds(pid) - before) / events * 1e3:8.3f} ms")
        print(f"memory after that       {resident_mib(pid):8.1f} MiB")


if __name__ == "__main__":
    main()
