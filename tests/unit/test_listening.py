"""How the processes listen: small answers leave at once."""

import asyncio
import socket

import pytest

from gpupool.core.listening import bind


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_small_answers_leave_at_once(host: str) -> None:
    """Else each waits for the caller's delayed acknowledgement, 40 ms."""
    at_once = asyncio.get_running_loop().create_future()

    def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        at_once.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = bind("control", host, 0, "GPUPOOL_CONTROL")
    async with await asyncio.start_server(met, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        assert await at_once
        writer.close()
        await writer.wait_closed()
