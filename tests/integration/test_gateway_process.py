"""The gateway as a process: its record, its key file, its port, and how it stops."""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway_stage import (
    MODEL,
    PATIENCE,
    Feed,
    Upstream,
    begin_stream,
    chunk,
    endpoint,
    feed_server,
    upstream_server,
    workload,
)
from gpupool.contracts.feed import EndpointsView
from gpupool.core.errors import EnvironmentProblemError, PortTakenError
from gpupool.core.home import Home
from gpupool.core.records import ProcessRecord
from gpupool.gateway.main import run
from gpupool.gateway.settings import GatewaySettings
from polling import eventually

COMMAND = [sys.executable, "-c", "from gpupool.cli.gateway import app; app()", "serve", "--port", "0"]


@asynccontextmanager
async def process(
    checkout: Path, home: Home, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start the command, give it and its URL once it listens; see that it is gone afterwards."""
    home.prepare()
    home.service_token.write_text("service\n")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(checkout / "src"),
        "GPUPOOL_HOME": str(home.root),
        "GPUPOOL_INSTANCE_ID": "inst-told",
    }
    child = await asyncio.create_subprocess_exec(*COMMAND, *arguments, env=environment)
    path = home.run / "gateway.json"
    try:
        await eventually(lambda: path.exists() or child.returncode is not None)
        record = ProcessRecord.read(path)
        assert record is not None
        assert record.url is not None
        yield child, record.url
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_it_serves_under_the_instance_id_it_was_given_and_leaves_nothing(
    checkout: Path, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    async with process(checkout, home) as (child, url), aiohttp.ClientSession() as http:
        async with http.get(f"{url}/healthz") as reply:
            health = await reply.json()
        async with http.get(f"{url}/v1/models") as reply:
            assert reply.status == 503
        record = ProcessRecord.read(home.run / "gateway.json")
        assert record is not None
        assert record.process.alive()
        child.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), PATIENCE) == 0
    assert (health["role"], health["instance_id"]) == ("gateway", "inst-told")
    assert not (home.run / "gateway.json").exists()
    assert not (home.keys / "gateway.token").exists()


async def test_beyond_loopback_it_makes_a_key_and_asks_for_it(checkout: Path, tmp_path: Path) -> None:
    home = Home(tmp_path)
    async with process(checkout, home, "--host", "0.0.0.0") as (_, shown), aiohttp.ClientSession() as http:
        key_file = home.keys / "gateway.token"
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        url = shown.replace("0.0.0.0", "127.0.0.1")
        async with http.get(f"{url}/v1/models") as reply:
            assert reply.status == 401
        headers = {"Authorization": f"Bearer {key_file.read_text().strip()}"}
        async with http.get(f"{url}/v1/models", headers=headers) as reply:
            assert reply.status == 503


async def test_a_stream_under_way_ends_in_good_order_after_the_signal_to_stop(
    checkout: Path, tmp_path: Path
) -> None:
    stopping = asyncio.Event()

    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("one", MODEL))
        await stopping.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    async with upstream_server(Upstream(behave)) as upstream:
        view = EndpointsView(revision=1, workloads=[workload()], endpoints=[endpoint("0", upstream.address)])
        async with (
            feed_server(Feed(view)) as control,
            process(checkout, Home(tmp_path), "--control", control) as (child, url),
            aiohttp.ClientSession() as http,
        ):
            await ready(http, url)
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
                assert await reply.content.readuntil(b"\n\n") == chunk("one", MODEL)
                child.send_signal(signal.SIGTERM)
                await refused(url)
                stopping.set()
                assert await reply.content.read() == b"data: [DONE]\n\n"
            assert await asyncio.wait_for(child.wait(), PATIENCE) == 0


async def test_a_second_signal_ends_it_at_once(checkout: Path, tmp_path: Path) -> None:
    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("one", MODEL))
        await upstream.cancelled.wait()
        return response

    upstream = Upstream(behave)
    async with upstream_server(upstream):
        view = EndpointsView(revision=1, workloads=[workload()], endpoints=[endpoint("0", upstream.address)])
        async with (
            feed_server(Feed(view)) as control,
            process(checkout, Home(tmp_path), "--control", control) as (child, url),
            aiohttp.ClientSession() as http,
        ):
            await ready(http, url)
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
                await reply.content.readuntil(b"\n\n")
                child.send_signal(signal.SIGINT)
                await refused(url)
                child.send_signal(signal.SIGINT)
                with pytest.raises(aiohttp.ClientPayloadError):
                    await reply.content.read()
            assert await asyncio.wait_for(child.wait(), PATIENCE) == 0
            await asyncio.wait_for(upstream.cancelled.wait(), PATIENCE)


async def ready(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.get(f"{url}/readyz") as reply:
                if reply.status == 200:
                    return


async def refused(url: str) -> None:
    """Wait until nobody listens at ``url`` any more."""
    port = int(url.rpartition(":")[2])

    def closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    await eventually(closed)


def test_a_taken_port_is_seen_before_anything_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)) as caught:
            run(GatewaySettings(home=home, gateway_port=port))
    assert caught.value.exit_code == 3
    assert "--port" in caught.value.remedy
    assert not home.exists()


def test_an_address_of_another_machine_is_refused_with_a_hint(tmp_path: Path, free_port: int) -> None:
    settings = GatewaySettings(home=tmp_path / "home", gateway_host="192.0.2.1", gateway_port=free_port)
    with pytest.raises(EnvironmentProblemError, match=r"192\.0\.2\.1") as caught:
        run(settings)
    assert "--host" in caught.value.remedy
