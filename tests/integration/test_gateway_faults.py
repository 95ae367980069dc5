"""Every error leaves the gateway in OpenAI's shape, with what happened and what to do."""

import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway_stage import MODEL, answer_json, begin_stream, chunk, endpoint, stage, workload
from gpupool.contracts.feed import EndpointsView
from polling import eventually

CHAT = "/v1/chat/completions"


async def error_of(reply: aiohttp.ClientResponse) -> dict[str, Any]:
    """Check the shape and return the inner object."""
    assert reply.content_type == "application/json"
    body = await reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"].strip()
    assert reply.headers["X-Request-Id"]
    assert reply.headers["Server"] == "gpupool"
    return dict(body["error"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param"),
    [
        ("GET", "/nowhere", b"", 404, "unknown_url", None),
        ("POST", "/v1/images", b"{}", 404, "unknown_url", None),
        ("GET", CHAT, b"", 405, "method_not_allowed", None),
        ("DELETE", "/v1/models", b"", 405, "method_not_allowed", None),
        ("POST", CHAT, b"", 400, "invalid_json", None),
        ("POST", CHAT, b'{"model": "tiny",', 400, "invalid_json", None),
        ("POST", CHAT, b'\xff\xfe{"', 400, "invalid_json", None),
        ("POST", CHAT, b"[" * 100_000, 400, "invalid_json", None),
        ("POST", CHAT, b"[]", 400, "invalid_type", None),
        ("POST", CHAT, b"{}", 400, "missing_required_parameter", "model"),
        ("POST", CHAT, b'{"model": 7}', 400, "invalid_type", "model"),
        ("POST", CHAT, b'{"model": ""}', 400, "invalid_type", "model"),
        ("POST", CHAT, b'{"model": "tiny", "messages": []}', 400, "empty_array", "messages"),
        ("POST", CHAT, b'{"model": "none"}', 404, "model_not_found", "model"),
        ("POST", "/v1/embeddings", b'{"model": "\\ud800"}', 404, "model_not_found", "model"),
        ("GET", "/v1/models/%FF", b"", 404, "model_not_found", "model"),
    ],
)
async def test_a_bad_request(
    tmp_path: Path, method: str, path: str, body: bytes, status: int, code: str, param: str | None
) -> None:
    async with (
        stage(tmp_path, answer_json) as playing,
        playing.http.request(method, playing.url + path, data=body) as reply,
    ):
        error = await error_of(reply)
    assert (reply.status, error["code"], error["param"]) == (status, code, param)
    assert playing.upstream.bodies == []
    if status == 405:
        assert reply.headers["Allow"]


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_above_the_limit(tmp_path: Path, announced: bool) -> None:
    async def pieces() -> Any:
        for _ in range(17):
            yield b" " * 1024 * 1024

    async with stage(tmp_path, answer_json) as playing:
        body = io.BytesIO(b" " * 17 * 1024 * 1024) if announced else pieces()
        async with playing.http.post(playing.url + CHAT, data=body) as reply:
            error = await error_of(reply)
    assert (reply.status, error["code"]) == (413, "request_too_large")
    assert playing.upstream.bodies == []


async def test_a_body_at_the_limit_passes(tmp_path: Path) -> None:
    head, tail = b'{"model":"tiny","x":"', b'"}'
    body = head + b"a" * (16 * 1024 * 1024 - len(head) - len(tail)) + tail
    async with (
        stage(tmp_path, answer_json) as playing,
        playing.http.post(playing.url + CHAT, data=io.BytesIO(body)) as reply,
    ):
        assert reply.status == 200
    assert playing.upstream.bodies == [body]


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (500, "Traceback: boom", "boom"),
        (404, '{"detail": "Not Found"}', "Not Found"),
        (422, '{"message": "max_tokens is too high"}', "max_tokens is too high"),
        (503, "", "without saying why"),
        (400, '{"error": "a bare string"}', "a bare string"),
    ],
)
async def test_an_upstreams_error_of_another_shape_is_wrapped(
    tmp_path: Path, status: int, text: str, said: str
) -> None:
    async def behave(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    async with stage(tmp_path, behave) as playing, playing.chat() as reply:
        error = await error_of(reply)
    assert (reply.status, error["code"]) == (status, "upstream_error")
    assert said in error["message"]


async def test_an_upstreams_error_of_the_right_shape_passes_byte_for_byte(tmp_path: Path) -> None:
    sent = b'{ "error": {"code":null, "message":"no","type":"x_error","param":"n","n_ctx":512}}'

    async def behave(_: web.Request) -> web.StreamResponse:
        return web.Response(status=400, body=sent, content_type="application/json")

    async with stage(tmp_path, behave) as playing, playing.chat() as reply:
        assert await reply.read() == sent
    assert reply.status == 400


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "exceed_context_size_error", ("invalid_request_error", "context_length_exceeded")),
        (503, "unavailable_error", ("service_unavailable_error", "unavailable_error")),
        (500, None, ("server_error", "upstream_error")),
    ],
)
async def test_a_numeric_code_gives_way_to_one_that_says_something(
    tmp_path: Path, status: int, kind: str | None, expected: tuple[str, str]
) -> None:
    async def behave(_: web.Request) -> web.StreamResponse:
        error = {"code": status, "message": "context is full", "type": kind, "n_ctx": 512}
        return web.json_response({"error": error}, status=status)

    async with stage(tmp_path, behave) as playing, playing.chat() as reply:
        error = (await reply.json())["error"]
    assert (reply.status, error["type"], error["code"]) == (status, *expected)
    assert (error["message"], error["param"], error["n_ctx"]) == ("context is full", None, 512)


async def test_what_a_model_does_not_offer_is_said_in_our_words(tmp_path: Path) -> None:
    async def behave(_: web.Request) -> web.StreamResponse:
        error = {"code": 501, "message": "Start it with `--embeddings`", "type": "not_supported_error"}
        return web.json_response({"error": error}, status=501)

    async with (
        stage(tmp_path, behave) as playing,
        playing.http.post(playing.url + "/v1/embeddings", json={"model": MODEL, "input": "Hi"}) as reply,
    ):
        error = await error_of(reply)
    assert (reply.status, error["type"], error["code"]) == (400, "invalid_request_error", "not_supported")
    assert error["message"].startswith(f"The model {MODEL!r} does not offer embeddings;")


async def test_an_unknown_path_names_those_there_are(tmp_path: Path) -> None:
    async with (
        stage(tmp_path, answer_json) as playing,
        playing.http.post(playing.url + "/v1/responses", json={}) as reply,
    ):
        message = (await error_of(reply))["message"]
    assert "POST /v1/chat/completions, /v1/completions, /v1/embeddings" in message


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async def behave(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("http://127.0.0.1:1/elsewhere")

    async with stage(tmp_path, behave) as playing, playing.chat(allow=1) as reply:
        assert (reply.status, (await error_of(reply))["code"]) == (502, "upstream_error")
    assert len(playing.upstream.bodies) == 1


async def test_a_silent_upstream_is_given_up(tmp_path: Path) -> None:
    async def behave(_: web.Request) -> web.StreamResponse:
        await playing.upstream.cancelled.wait()
        return web.Response()

    async with stage(tmp_path, behave, gateway_silence_seconds=0.05) as playing, playing.chat() as reply:
        assert (reply.status, (await error_of(reply))["code"]) == (504, "upstream_timeout")
        await eventually(playing.upstream.cancelled.is_set)


async def test_an_upstream_that_falls_silent_in_mid_stream_ends_the_stream_with_an_error(
    tmp_path: Path,
) -> None:
    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("a", MODEL))
        await playing.upstream.cancelled.wait()
        return response

    async with (
        stage(tmp_path, behave, gateway_silence_seconds=0.05) as playing,
        playing.chat(stream=True) as reply,
    ):
        events = (await reply.read()).split(b"\n\n")
    assert events[0] + b"\n\n" == chunk("a", MODEL)
    assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "upstream_timeout"
    assert events[2:] == [b""]


async def test_an_event_above_the_limit_ends_the_stream_politely(tmp_path: Path) -> None:
    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(b"data: ok\n\n")
        await response.write(b"data: " + b"x" * (1024 * 1024 + 10) + b"\n\n")
        await playing.upstream.cancelled.wait()
        return response

    async with stage(tmp_path, behave) as playing, playing.chat(stream=True) as reply:
        events = (await reply.read()).split(b"\n\n")
        await eventually(playing.upstream.cancelled.is_set)
    assert events[0] == b"data: ok"
    assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "event_too_large"


async def test_a_stream_whose_end_is_not_marked_needs_its_done(tmp_path: Path) -> None:
    async def behave(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        tail = b"data: [DONE]\n\n" if json.loads(playing.upstream.bodies[-1])["whole"] else b""
        request.transport.write(head + chunk("a", MODEL) + tail)
        request.transport.close()
        return web.Response()

    async with stage(tmp_path, behave) as playing:
        async with playing.chat(stream=True, whole=True) as reply:
            assert await reply.read() == chunk("a", MODEL) + b"data: [DONE]\n\n"
        async with playing.chat(stream=True, whole=False) as reply:
            assert b'"upstream_failed"' in await reply.read()


async def test_an_upstream_that_dies_within_a_whole_answer(tmp_path: Path) -> None:
    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"model"')
        assert request.transport is not None
        request.transport.abort()
        return response

    async with stage(tmp_path, behave) as playing, playing.chat() as reply:
        assert (reply.status, (await error_of(reply))["code"]) == (502, "upstream_failed")
    assert len(playing.upstream.bodies) == 1


async def test_nobody_to_reach(tmp_path: Path, free_port: int) -> None:
    gone = EndpointsView(
        revision=1, workloads=[workload()], endpoints=[endpoint("gone", f"127.0.0.1:{free_port}")]
    )
    async with stage(tmp_path, view=gone) as playing, playing.chat() as reply:
        error = await error_of(reply)
    assert (reply.status, error["code"]) == (502, "upstream_unreachable")
    assert MODEL in error["message"]
