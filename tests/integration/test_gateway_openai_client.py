"""The official OpenAI client works against the gateway, and meets the exceptions that it knows."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from aiohttp import web
from openai.types.chat import ChatCompletionMessageParam

from gateway_stage import MODEL, Stage, answer_json, begin_stream, chunk, endpoint, stage, workload
from gpupool.contracts.feed import EndpointsView
from polling import eventually

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def client_of(playing: Stage, key: str = "unused") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{playing.url}/v1", api_key=key, max_retries=0) as client:
        yield client


async def test_a_chat_completion_names_the_model_as_asked(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json) as playing, client_of(playing) as client:
        reply = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert reply.model == MODEL
    assert reply.choices[0].message.content == "Hello"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 2
    assert json.loads(playing.upstream.bodies[0])["model"] == MODEL


async def test_a_streamed_chat_completion(tmp_path: Path) -> None:
    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        for text in ("Gra", "vi", "ty 🜁"):
            await response.write(chunk(text))
        await response.write(b"data: [DONE]\n\n")
        return response

    async with stage(tmp_path, behave) as playing, client_of(playing) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        received = [item async for item in stream]
    assert "".join(item.choices[0].delta.content or "" for item in received) == "Gravity 🜁"
    assert {item.model for item in received} == {MODEL}


async def test_completions_and_embeddings(tmp_path: Path) -> None:
    async def behave(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            return web.json_response({"object": "list", "model": "up", "data": data, "usage": usage})
        choices = [{"index": 0, "text": "more", "finish_reason": "stop", "logprobs": None}]
        body = {"id": "c", "object": "text_completion", "created": 1, "model": "up", "choices": choices}
        return web.json_response(body)

    async with stage(tmp_path, behave) as playing, client_of(playing) as client:
        vectors = await client.embeddings.create(model=MODEL, input="Hi", encoding_format="float")
        text = await client.completions.create(model=MODEL, prompt="Hi")
    assert (vectors.model, vectors.data[0].embedding) == (MODEL, [0.5, -0.25])
    assert (text.model, text.choices[0].text) == (MODEL, "more")


async def test_models_are_listed_cold_ones_included(tmp_path: Path) -> None:
    cold = workload(id="wl-2", name="cold", models=["org/cold-7b"], state="waiting", created_at=7.0)
    view = EndpointsView(revision=1, workloads=[workload(), cold], endpoints=[])
    async with stage(tmp_path, view=view) as playing, client_of(playing) as client:
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("org/cold-7b")
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("none")
    assert [model.id for model in listed] == ["org/cold-7b", MODEL]
    assert {model.object for model in listed} == {"model"}
    assert (one.id, one.created) == ("org/cold-7b", 7)
    assert caught.value.code == "model_not_found"


async def test_an_unknown_model_is_not_found(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json) as playing, client_of(playing) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert (caught.value.code, caught.value.param, caught.value.type) == (
        "model_not_found",
        "model",
        "not_found_error",
    )
    assert MODEL in caught.value.message


async def test_a_cold_model_is_unavailable_with_the_feeds_reason(tmp_path: Path) -> None:
    view = EndpointsView(
        revision=1, workloads=[workload(state="starting", why="loading the weights")], endpoints=[]
    )
    async with stage(tmp_path, view=view) as playing, client_of(playing) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert caught.value.status_code == 503
    assert caught.value.code == "model_not_ready"
    assert "loading the weights" in caught.value.message
    assert int(caught.value.response.headers["Retry-After"]) > 0


async def test_a_missing_or_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json, key="right") as playing:
        async with client_of(playing, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list()
        async with client_of(playing, "right") as client:
            reply = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
            assert reply.model == MODEL
        async with playing.http.get(f"{playing.url}/healthz") as open_to_all:
            assert open_to_all.status == 200
        async with playing.http.get(f"{playing.url}/metrics") as closed:
            assert closed.status == 401
    assert caught.value.code == "invalid_api_key"
    assert "Authorization" not in playing.upstream.asked[0].headers


async def test_an_upstream_that_dies_in_mid_stream_is_an_api_error_after_the_first_words(
    tmp_path: Path,
) -> None:
    async def behave(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("Gra") + b'data: {"torn')
        assert request.transport is not None
        request.transport.abort()
        return response

    async with stage(tmp_path, behave) as playing, client_of(playing) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        first = await anext(stream)
        with pytest.raises(openai.APIError) as caught:
            await anext(stream)
    assert first.choices[0].delta.content == "Gra"
    assert caught.value.code == "upstream_failed"


async def test_a_rate_limit_of_the_upstream_stays_one(tmp_path: Path) -> None:
    async def behave(_: web.Request) -> web.StreamResponse:
        error = {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
        return web.json_response({"error": error}, status=429, headers={"Retry-After": "9"})

    async with stage(tmp_path, behave) as playing, client_of(playing) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.response.headers["Retry-After"] == "9"


async def test_only_endpoints_that_offer_the_model_are_asked(tmp_path: Path) -> None:
    async with stage(tmp_path, answer_json, answer_json) as playing, client_of(playing) as client:
        other = endpoint("1", playing.upstreams[1].address, models=["other"])
        playing.feed.change(
            workloads=[workload(), workload(id="wl-2", name="other", models=["other"])],
            endpoints=[playing.feed.view.endpoints[0], other],
        )
        await eventually(lambda: playing.follower.view == playing.feed.view)
        for _ in range(3):
            await client.chat.completions.create(model="other", messages=MESSAGES)
    assert [len(upstream.bodies) for upstream in playing.upstreams] == [0, 3]
