"""Whatever bytes come to the admin interface, it answers with a refusal or not at all, and goes on."""

import asyncio
import contextlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpupool.recompute.proxy.admin_http import AdminServer

TOKEN = "token-of-a-test"
HEADS = st.sampled_from(
    [
        b"GET /v1/top HTTP/1.1\r\n",
        b"POST /v1/nodes HTTP/1.1\r\nAuthorization: Bearer token-of-a-test\r\n",
        b"POST /v1/nodes HTTP/1.1\r\nAuthorization: Bearer \xff\xfe\r\n",
        b"POST /v1/nodes HTTP/1.1\r\nAuthorization: bearer token-of-a-test\r\nContent-Length: -1\r\n",
        b"GET /v1/x?name=%zz&&a=b=c HTTP/1.1\r\nAuthorization: Bearer token-of-a-test\r\n",
        b"GET //[::1/ HTTP/1.1\r\nAuthorization: Bearer token-of-a-test\r\n",
        b"\r\n",
    ]
)


async def answer(method: str, path: str, query: dict[str, str], body: object) -> object:
    return [method, path, query, body]


async def ask(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(streams=st.lists(st.tuples(HEADS, st.binary(max_size=200), st.booleans()), max_size=6))
def test_any_bytes(streams: list[tuple[bytes, bytes, bool]]) -> None:
    async def scene() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        server = AdminServer(TOKEN, answer)
        port = await server.start()
        for head, more, whole in streams:
            received = await ask(port, head + more + (b"\r\n\r\n" if whole else b""))
            assert received == b"" or received.startswith(b"HTTP/1.1 ")
        request = f"GET /v1/top HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        assert (await ask(port, request)).startswith(b"HTTP/1.1 200 ")
        await server.close()
        assert faults == []

    asyncio.run(scene())
