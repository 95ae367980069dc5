"""The typed client against a real server: answers, and each fault as an error of ours."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from gateway_stage import serving
from gpupool.contracts.recompute_client import RecomputeClient
from gpupool.core.errors import (
    BusyError,
    DeadlineError,
    InvalidInputError,
    UnavailableError,
    UnsupportedError,
)
from gpupool.pos.errors import AmbiguousProofError, NoProofError
from gpupool.recompute.demo import demo_request, known_proof, quality_request
from polling import eventually
from recompute_stage import ScriptedEngine, Stage, stage


@pytest.fixture
async def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
async def running(engine: ScriptedEngine) -> AsyncIterator[Stage]:
    async with stage(engine, recompute_queue_room=0) as s:
        yield s


async def test_answers_come_back_typed(running: Stage) -> None:
    def use() -> None:
        with RecomputeClient(running.url + "/") as client:
            assert client.recover_proof(demo_request()).numbers() == known_proof().xs
            assert client.look_up_quality(quality_request(known_proof())).numbers() == known_proof().xs[:2]
            assert client.server().instance_id == "inst-test"

    await asyncio.to_thread(use)


@pytest.mark.parametrize("fault", [NoProofError("Nothing fits."), AmbiguousProofError("Two fit.")])
async def test_the_servers_error_comes_back_as_itself(
    engine: ScriptedEngine, running: Stage, fault: NoProofError
) -> None:
    engine.fault = fault
    with RecomputeClient(running.url) as client, pytest.raises(NoProofError) as caught:
        await asyncio.to_thread(client.recover_proof, demo_request())
    assert type(caught.value) is type(fault)
    assert (caught.value.message, caught.value.remedy) == (fault.message, fault.remedy)


async def test_what_the_server_does_not_support_is_told(running: Stage) -> None:
    with RecomputeClient(running.url) as client, pytest.raises(UnsupportedError, match="level 8"):
        await asyncio.to_thread(client.recover_proof, demo_request().model_copy(update={"level": 8}))


async def test_the_deadline_travels_with_the_request(engine: ScriptedEngine, running: Stage) -> None:
    engine.gate.clear()
    with RecomputeClient(running.url) as client, pytest.raises(DeadlineError):
        await asyncio.to_thread(lambda: client.recover_proof(demo_request(), seconds=0.05))
    await eventually(lambda: engine.stopped == 1)


async def test_a_busy_server_is_told_apart(engine: ScriptedEngine, running: Stage) -> None:
    engine.gate.clear()
    first = running.start("/v1/proofs", demo_request().model_dump_json())
    await eventually(lambda: engine.asked)
    with RecomputeClient(running.url) as client, pytest.raises(BusyError):
        await asyncio.to_thread(client.recover_proof, demo_request())
    engine.gate.set()
    await first


def test_a_server_that_is_not_there(free_port: int) -> None:
    with (
        RecomputeClient(f"http://127.0.0.1:{free_port}") as client,
        pytest.raises(UnavailableError, match="reached"),
    ):
        client.server()


def test_a_peer_that_accepts_and_stays_silent_is_timed_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with RecomputeClient(url) as client, pytest.raises(DeadlineError, match="did not answer"):
            client.server(seconds=0.05)


async def test_a_stranger_is_no_recompute_server(running: Stage) -> None:
    with (
        RecomputeClient(running.url + "/healthz?") as client,
        pytest.raises(UnavailableError, match="no recompute"),
    ):
        await asyncio.to_thread(client.server)


@pytest.mark.parametrize("status", [301, 401, 404])
async def test_a_refusal_by_something_else_is_no_recompute_server(status: int) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    async with serving(app) as address:
        with (
            RecomputeClient(f"http://{address}") as client,
            pytest.raises(UnavailableError, match="is no recompute server"),
        ):
            await asyncio.to_thread(client.server)


def test_an_address_must_be_one() -> None:
    with pytest.raises(InvalidInputError, match="address"):
        RecomputeClient("http://host:port")
