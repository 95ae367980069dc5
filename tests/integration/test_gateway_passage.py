"""What passes through the gateway: bytes at once, ids, leaving clients, retries, and the feed's changes."""

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway_stage import (
    MODEL,
    SERVICE_TOKEN,
    answer_json,
    begin_stream,
    chunk,
    endpoint,
    stage,
)
from polling import eventually


async def test_a_piece_arrives_before_the_next_is_made(tmp_path: Path) -> None:
    first_seen = asyncio.Event()

    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("one", MODEL))
        await first_seen.wait()
        await response.write(chunk("two", MODEL) + b"data: [DONE]\n\n")
        return response

    async with stage(tmp_path, behave) as playing, playing.chat(stream=True) as reply:
        async with asyncio.timeout(10):
            assert await reply.content.readuntil(b"\n\n") == chunk("one", MODEL)
            first_seen.set()
            assert await reply.content.read() == chunk("two", MODEL) + b"data: [DONE]\n\n"
    assert reply.content_type == "text/event-stream"
    assert reply.headers["X-Accel-Buffering"] == "no"


async def test_the_head_of_a_stream_arrives_before_its_first_event(tmp_path: Path) -> None:
    head_seen = asyncio.Event()

    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await head_seen.wait()
        return response

    async with asyncio.timeout(10), stage(tmp_path, behave) as playing, playing.chat(stream=True) as reply:
        assert reply.status == 200
        head_seen.set()
        assert await reply.read() == b""


@pytest.mark.parametrize("moment", ["before the first byte", "in mid stream"])
async def test_a_client_that_leaves_cancels_the_upstream(tmp_path: Path, moment: str) -> None:
    asked = asyncio.Event()

    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if moment == "in mid stream":
            response = await begin_stream(request)
            await response.write(chunk("one"))
        asked.set()
        await asyncio.Event().wait()
        return response

    async with asyncio.timeout(10), stage(tmp_path, behave) as playing:
        leaving = asyncio.create_task(read_all(playing.chat(stream=True)))
        await asked.wait()
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
        await playing.upstream.cancelled.wait()
        async with playing.http.get(f"{playing.url}/metrics") as reply:
            text = await reply.text()
    assert 'gpupool_gateway_requests_total{model="tiny",status="499"} 1.0' in text
    assert 'gpupool_gateway_outstanding{model="tiny"} 0.0' in text


async def read_all(asking: aiohttp.client._RequestContextManager) -> None:
    async with asking as reply:
        await reply.read()


async def test_one_retry_goes_elsewhere_when_nobody_listens(tmp_path: Path, free_port: int) -> None:
    async with stage(tmp_path, answer_json) as playing:
        dead = endpoint("dead", f"127.0.0.1:{free_port}")
        playing.feed.change(endpoints=[dead, *playing.feed.view.endpoints])
        await eventually(lambda: playing.follower.view == playing.feed.view)
        for _ in range(4):
            async with playing.chat() as reply:
                assert reply.status == 200
    assert len(playing.upstream.bodies) == 4


async def test_a_second_failure_is_final(tmp_path: Path) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with stage(tmp_path, hang_up, hang_up, hang_up) as playing, playing.chat() as reply:
        assert reply.status == 502
    assert sum(len(upstream.bodies) for upstream in playing.upstreams) == 2


async def test_a_retry_never_meets_a_second_kept_connection_that_its_server_no_longer_wants(
    tmp_path: Path,
) -> None:
    seen: list[object] = []
    both = asyncio.Barrier(2)

    async def behave(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        if transport in seen:
            transport.abort()
            return web.Response()
        seen.append(transport)
        if len(seen) <= 2:
            await both.wait()
        return await answer_json(request)

    async with stage(tmp_path, behave) as playing:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(read_all(playing.chat()))
        async with playing.chat() as reply:
            assert reply.status == 200
    assert (len(seen), len(playing.upstream.bodies)) == (3, 4)


async def test_requests_spread_over_the_idle_endpoints(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def behave(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await answer_json(request)

    async with stage(tmp_path, behave, behave, behave) as playing, asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(read_all(playing.chat()))
        await eventually(lambda: sum(len(upstream.bodies) for upstream in playing.upstreams) == 6)
        assert [len(upstream.bodies) for upstream in playing.upstreams] == [2, 2, 2]
        release.set()


async def test_request_ids_and_secrets(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json, key="secret") as playing:
        headers = {"X-Request-Id": "mine-1", "Authorization": "Bearer secret", "X-Odd": "\udce9"}
        body = b'{"model":"tiny"}'
        async with playing.http.post(
            f"{playing.url}/v1/chat/completions?trace=a%20b", data=body, headers=headers
        ) as reply:
            assert reply.status == 200
            assert reply.headers["X-Request-Id"] == "mine-1"
    asked = playing.upstream.asked[0]
    assert asked.headers["X-Request-Id"] == "mine-1"
    assert asked.rel_url.raw_query_string == "trace=a%20b"
    assert "secret" not in str(asked.headers)
    assert playing.feed.tokens[0] == f"Bearer {SERVICE_TOKEN}"


async def test_the_last_view_stays_while_control_is_down_or_half_awake(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json) as playing:
        playing.feed.change(status=503)
        await eventually(lambda: playing.follower.trouble is not None)
        async with playing.chat() as reply:
            assert reply.status == 200
        polls = playing.feed.polls
        playing.feed.change(complete=False, endpoints=[], workloads=[])
        await eventually(lambda: playing.feed.polls >= polls + 2)
        async with playing.chat() as reply:
            assert reply.status == 200
        async with playing.http.get(f"{playing.url}/metrics") as metrics:
            assert "gpupool_gateway_feed_up 0.0" in await metrics.text()
        playing.feed.change(complete=True)
        await eventually(lambda: playing.follower.trouble is None)
        async with playing.chat() as reply:
            assert reply.status == 404


async def test_readiness_waits_for_the_first_complete_view(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json, await_view=False) as playing:
        playing.feed.change(status=500)
        async with playing.http.get(f"{playing.url}/healthz") as health:
            assert (await health.json())["role"] == "gateway"
            assert (await health.json())["instance_id"] == "inst-test"
        async with playing.http.get(f"{playing.url}/readyz") as ready:
            assert ready.status == 503
        async with playing.chat() as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (503, "not_ready")
        async with playing.http.get(f"{playing.url}/v1/models") as reply:
            assert reply.status == 503
        playing.feed.change(status=200)
        async with asyncio.timeout(10):
            await playing.follower.wait_ready()
        async with playing.http.get(f"{playing.url}/readyz") as ready:
            assert ready.status == 200


async def test_a_large_answer_passes_whole_with_its_headers(tmp_path: Path) -> None:
    padding = "é" * 2_000_000

    async def behave(_: web.Request) -> web.StreamResponse:
        return web.json_response({"model": "up", "padding": padding}, headers={"X-Model-Time": "3"})

    async with stage(tmp_path, behave) as playing, playing.chat() as reply:
        assert await reply.json() == {"model": MODEL, "padding": padding}
    assert reply.headers["X-Model-Time"] == "3"


async def test_an_answer_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.gateway.forwarding.MAX_REPLY_BYTES", 1000)

    async def behave(_: web.Request) -> web.StreamResponse:
        return web.json_response({"padding": "x" * 1000})

    async with stage(tmp_path, behave) as playing, playing.chat() as reply:
        assert (reply.status, (await reply.json())["error"]["code"]) == (502, "upstream_reply_too_large")


async def test_a_client_that_stops_reading_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.gateway.forwarding.STALL_SECONDS", 0.1)

    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        while True:
            await response.write(b"data: " + b"x" * 100_000 + b"\n\n")

    async with asyncio.timeout(10), stage(tmp_path, behave) as playing, playing.chat(stream=True) as reply:
        assert reply.status == 200
        await playing.upstream.cancelled.wait()


async def test_an_endpoint_with_an_address_that_is_none_is_passed_over(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json) as playing:
        odd = endpoint("odd", "127.0.0.1:notaport")
        playing.feed.change(endpoints=[odd, *playing.feed.view.endpoints])
        await eventually(lambda: playing.follower.view == playing.feed.view)
        for _ in range(2):
            async with playing.chat() as reply:
                assert reply.status == 200


async def test_what_was_asked_is_counted_by_model(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json) as playing:
        for model in (MODEL, MODEL, "made-up"):
            async with playing.chat(model=model) as reply:
                await reply.read()
        async with playing.http.get(f"{playing.url}/metrics") as reply:
            text = await reply.text()
    assert 'gpupool_gateway_requests_total{model="tiny",status="2xx"} 2.0' in text
    assert 'gpupool_gateway_requests_total{model="unknown",status="4xx"} 1.0' in text
    assert 'gpupool_gateway_request_seconds_count{model="tiny"} 2.0' in text
    assert 'gpupool_gateway_upstream_head_seconds_count{model="tiny"} 2.0' in text
    assert "gpupool_gateway_feed_up 1.0" in text
    assert "made-up" not in text
    assert "process_resident_memory_bytes" in text
