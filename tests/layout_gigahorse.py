"""What a farm of Gigahorse programs looks like from outside: a server that answers frames, and a client's behaviour.

The server has the original's narrow places: it serves 2 x cores + 10 connections at a time, and lets the others wait
without a word. The client has its manners: one connection a request, one list of hosts, a failed one left alone for
the retry interval. Payloads mean nothing; an answer names its server, so that a test sees who gave it. Run as a
program this file is such a server.
"""

import argparse
import asyncio
import struct
import time
from itertools import count

SERVED_AT_ONCE = 14


class GigahorseServer:
    """Answers every frame with its name and the payload backwards."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name.encode(), seconds
        self._places = asyncio.Semaphore(SERVED_AT_ONCE)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._places:
                while True:
                    size = struct.unpack("<I", await reader.readexactly(4))[0]
                    if not 0 < size <= 2**20:
                        return
                    payload = await reader.readexactly(size)
                    await asyncio.sleep(self._seconds)
                    answer = self._name + b" " + payload[::-1]
                    writer.write(struct.pack("<I", len(answer)) + answer)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()


class NoHostError(Exception):
    """No host of the list gave an answer."""


class GigahorseClient:
    """Asks the hosts of a list as the original does."""

    def __init__(
        self, hosts: list[tuple[str, int]], *, timeout_s: float, connect_s: float, retry_s: float
    ) -> None:
        self._hosts, self._retry_s = hosts, retry_s
        self._timeout_s, self._connect_s = timeout_s, connect_s
        self._rests_until = dict.fromkeys(hosts, 0.0)
        self._turns, self._payloads = count(), count(1)

    async def ask(self) -> str:
        """Return the name of the server that answered; raises NoHostError once every host has failed."""
        now, turn = time.monotonic(), next(self._turns)
        turned = [self._hosts[(turn + i) % len(self._hosts)] for i in range(len(self._hosts))]
        troubles = []
        for host in sorted(turned, key=lambda host: self._rests_until[host] > now):
            try:
                return await self._ask_one(host)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                self._rests_until[host] = time.monotonic() + self._retry_s
                troubles.append(f"{host[0]}:{host[1]} {error!r}")
        raise NoHostError("; ".join(troubles))

    async def _ask_one(self, host: tuple[str, int]) -> str:
        payload = b"question %d" % next(self._payloads)
        async with asyncio.timeout(self._connect_s):
            reader, writer = await asyncio.open_connection(*host)
        try:
            writer.write(struct.pack("<I", len(payload)) + payload)
            async with asyncio.timeout(self._timeout_s):
                size = struct.unpack("<I", await reader.readexactly(4))[0]
                name, _, rest = (await reader.readexactly(size)).partition(b" ")
        finally:
            writer.transport.abort()
        if rest != payload[::-1]:
            raise OSError("the answer is one to another question")
        return name.decode()


async def _run(name: str, port: int, seconds: float) -> None:
    server = await asyncio.start_server(GigahorseServer(name, seconds).serve, "0.0.0.0", port)
    print(f"listening since {time.time():.3f}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=0.005)
    given = parser.parse_args()
    asyncio.run(_run(given.name, given.port, given.seconds))
