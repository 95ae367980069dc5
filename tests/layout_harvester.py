"""A harvester for tests of layouts: a program that asks all the time and says of each look-up what came of it.

It may carry several loads at once, each with its own list of hosts and its own patience, as if they were several
harvesters; so their start-up is paid for once. HTTP loads are our own client's look-ups of real proofs at C1, seven
qualities to one proof; a load whose list begins with ``frames:`` is that of a Gigahorse client. One line of JSON a
look-up, on standard output.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from itertools import count

import mainnet
from gpupool.core.errors import DeadlineError, GpupoolError
from gpupool.pos.quality import proof_pair
from gpupool.recompute.addresses import parse_addresses
from gpupool.recompute.client import AsyncClient, ClientOptions, Host
from gpupool.recompute.demo import proof_request, quality_request
from layout_gigahorse import GigahorseClient, NoHostError

LEVEL = 1
PROOF_EVERY = 8


@dataclass(frozen=True, slots=True)
class Line:
    """One look-up."""

    load: str
    host: str
    """Who answered it; empty where nobody did."""
    seconds: float
    """By the harvester's own clock."""
    fault: str = ""
    """What was said where nobody answered."""
    rescued: bool = False
    """Some host failed on the way."""


async def _ask_http(client: AsyncClient, number: int) -> tuple[str, bool]:
    proof = mainnet.K32[number % len(mainnet.K32)]
    if number % PROOF_EVERY == 0:
        answer = await client.recover_proof(proof_request(proof, LEVEL))
        right = proof.xs
    else:
        answer = await client.look_up_quality(quality_request(proof, LEVEL))
        right = proof_pair(proof.xs, proof.challenge)
    if answer.numbers != right:
        raise DeadlineError("The answer is wrong, although it was verified.")
    return answer.host, bool(answer.troubles)


async def _steadily(
    load: str, ask: Callable[[int], Awaitable[tuple[str, bool]]], given: argparse.Namespace
) -> None:
    """Ask ``--rate`` times a second whatever becomes of it, ``--count`` times where that is given."""
    loop, numbers = asyncio.get_running_loop(), count()
    began = loop.time()

    async def one(number: int) -> None:
        asked = loop.time()
        try:
            host, rescued = await ask(number)
            line = Line(load, host, loop.time() - asked, rescued=rescued)
        except (GpupoolError, NoHostError) as error:
            line = Line(load, "", loop.time() - asked, fault=str(error))
        print(json.dumps(asdict(line)), flush=True)

    async with asyncio.TaskGroup() as group:
        for number in numbers:
            if number == given.count:
                return
            await asyncio.sleep(max(0.0, began + number / given.rate - loop.time()))
            group.create_task(one(number))


async def _carry(load: str, given: argparse.Namespace) -> None:
    heading, _, hosts = load.partition("=")
    name, _, seconds = heading.partition("@")
    timeout_s = float(seconds or given.timeout)
    if hosts.startswith("frames:"):
        addresses = list(parse_addresses(hosts.removeprefix("frames:")))
        frames = GigahorseClient(addresses, timeout_s=timeout_s, connect_s=given.connect, retry_s=given.retry)

        async def ask_frames(_: int) -> tuple[str, bool]:
            return await frames.ask(), False

        await _steadily(name, ask_frames, given)
        return
    options = ClientOptions(
        hosts=tuple(Host(*address) for address in parse_addresses(hosts)),
        timeout_s=timeout_s,
        connect_timeout_s=given.connect,
        retry_interval_s=given.retry,
        local_fallback=given.local,
    )
    async with AsyncClient(options) as client:
        await _steadily(name, lambda number: _ask_http(client, number), given)


async def _main(given: argparse.Namespace) -> None:
    async with asyncio.TaskGroup() as group:
        for load in given.loads:
            group.create_task(_carry(load, given))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("loads", nargs="+", metavar="NAME[@SECONDS]=HOSTS")
    parser.add_argument("--rate", type=float, default=5.0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--connect", type=float, default=1.0)
    parser.add_argument("--retry", type=float, default=1.0)
    parser.add_argument("--local", action="store_true")
    asyncio.run(_main(parser.parse_args()))
