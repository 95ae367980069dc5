"""A server that knows its model only by another name is found out once and then asked by that name."""

import json
from pathlib import Path

import pytest
from aiohttp import web

from gateway_stage import MODEL, Behaviour, answer_json, begin_stream, chunk, endpoint, stage
from polling import eventually

OWN = "/models/tiny.gguf"


def picky(listing: object, log: list[str]) -> Behaviour:
    """A server that takes only its own name and shows ``listing`` as its models."""

    async def behave(request: web.Request) -> web.StreamResponse:
        log.append(f"{request.method} {request.path}")
        if request.method == "GET":
            return web.json_response(listing)
        body = await request.json()
        if body["model"] != OWN:
            error = {"message": "no such model", "type": "NotFoundError", "param": "model", "code": 404}
            return web.json_response({"error": error}, status=404)
        if not body.get("stream"):
            return await answer_json(request)
        response = await begin_stream(request)
        await response.write(chunk("hi", OWN) + b"data: [DONE]\n\n")
        return response

    return behave


async def test_the_name_is_learned_once_and_hidden_from_the_client(tmp_path: Path) -> None:
    log: list[str] = []
    async with stage(tmp_path, picky({"data": [{"id": OWN}]}, log)) as playing:
        for _ in range(2):
            async with playing.chat() as reply:
                assert (reply.status, (await reply.json())["model"]) == (200, MODEL)
        async with playing.chat(stream=True) as reply:
            assert await reply.read() == chunk("hi", MODEL) + b"data: [DONE]\n\n"
    chat = "POST /v1/chat/completions"
    assert log == [chat, "GET /v1/models", chat, chat, chat]
    assert [json.loads(body)["model"] for body in playing.upstream.bodies if body] == [MODEL, OWN, OWN, OWN]
    assert json.loads(playing.upstream.bodies[-1])["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "listing",
    [
        {"data": [{"id": OWN}, {"id": "another"}]},
        {"data": []},
        {"data": [{"id": MODEL}]},
        {"data": [{"id": 7}]},
        {"data": "text"},
        [OWN],
        None,
    ],
)
async def test_where_the_one_meant_is_not_clear_the_refusal_passes(tmp_path: Path, listing: object) -> None:
    log: list[str] = []
    async with stage(tmp_path, picky(listing, log)) as playing:
        for _ in range(2):
            async with playing.chat() as reply:
                assert reply.status == 404
                assert (await reply.json())["error"]["message"] == "no such model"
    assert log.count("GET /v1/models") == 1


async def test_a_new_address_is_asked_anew(tmp_path: Path) -> None:
    log: list[str] = []
    async with stage(tmp_path, picky({"data": [{"id": OWN}]}, log), answer_json) as playing:
        playing.feed.change(endpoints=[playing.feed.view.endpoints[0]])
        await eventually(lambda: playing.follower.view == playing.feed.view)
        async with playing.chat() as reply:
            assert reply.status == 200
        playing.feed.change(endpoints=[endpoint("0", playing.upstreams[1].address)])
        await eventually(lambda: playing.follower.view == playing.feed.view)
        async with playing.chat() as reply:
            assert reply.status == 200
    assert json.loads(playing.upstreams[1].bodies[0])["model"] == MODEL
