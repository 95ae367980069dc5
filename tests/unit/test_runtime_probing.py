"""Telling the workload's own answer from a stranger's."""

import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from certificates import Authority
from gpupool.core.processes import identify_self
from gpupool.runtimes.process.probing import ask, listening_inodes, port_is_held, url_of
from gpupool.runtimes.process.reasons import exit_reason


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client session."""
    async with aiohttp.ClientSession() as made:
        yield made


async def answer(
    session: aiohttp.ClientSession,
    response: web.Response,
    context: ssl.SSLContext | None = None,
    *,
    asked_over_tls: bool | None = None,
) -> str | None:
    """Return what `ask` says of a server with this one answer."""

    async def serve(_: web.Request) -> web.Response:
        return response

    app = web.Application()
    app.router.add_get("/health", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    tls = context is not None if asked_over_tls is None else asked_over_tls
    try:
        url = url_of("127.0.0.1", runner.addresses[0][1], "/health", tls=tls)
        return await ask(session, url, "inst-1", 5.0)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("response", "fault"),
    [
        (web.Response(), None),
        (web.Response(status=204), None),
        (web.json_response({"status": "ok"}), None),
        (web.json_response({"instance_id": "inst-1"}), None),
        (web.json_response(["instance_id"]), None),
        (web.Response(text="{not json", content_type="application/json"), None),
        (web.json_response({"instance_id": "inst-2"}), "another process answers on its port"),
        (web.Response(status=503), "it answers 503"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "it answers 302"),
    ],
)
async def test_an_answer_is_judged(
    session: aiohttp.ClientSession, response: web.Response, fault: str | None
) -> None:
    assert await answer(session, response) == fault


async def test_silence_and_absence_are_told_apart(session: aiohttp.ClientSession, free_port: int) -> None:
    assert await ask(session, url_of("127.0.0.1", free_port, "/"), "", 5.0) == "nothing listens on its port"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = url_of("127.0.0.1", silent.getsockname()[1], "/")
        assert await ask(session, url, "", 0.05) == "no answer within 0.05 s"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listening_socket_is_found_with_its_holder(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        assert listening_inodes(port) == {os.fstat(server.fileno()).st_ino}
        assert port_is_held([identify_self()], port)
        assert not port_is_held([], port)


async def test_a_workload_over_tls_is_asked_over_tls(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("workload")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    said = await answer(session, web.json_response({"instance_id": "inst-1"}), context)
    assert said is None
    assert await answer(session, web.json_response({"instance_id": "inst-2"}), context) is not None
    plain = await answer(session, web.Response(), None, asked_over_tls=True)
    assert plain == "it does not speak TLS, as its spec says"


def test_the_any_address_is_asked_through_loopback() -> None:
    assert url_of("0.0.0.0", 1, "/h") == "http://127.0.0.1:1/h"
    assert url_of("::", 1, "/h") == "http://[::1]:1/h"
    assert url_of("node.example", 1, "/h") == "http://node.example:1/h"


def test_reasons_start_with_a_stable_word() -> None:
    assert exit_reason(0, 1.23, "") == "exit: code 0 after 1.2 s"
    assert exit_reason(3, 1.0, "bad") == "exit: code 3 after 1.0 s: bad"
    assert exit_reason(-9, 1.0, "half of a lin") == "signal: SIGKILL after 1.0 s"
    assert exit_reason(-99, 1.0, "") == "signal: number 99 after 1.0 s"
    assert exit_reason(None, 1.0, "") == "exit: code unknown after 1.0 s"
