"""A proxy that lives on control's feed: the pool places recompute servers, and nobody tells the proxy or a harvester.

Control, agents, servers and proxy are real processes, and each server takes TLS only, with the certificate that its node
holds: the proxy learns that from the feed, and trusts the farm's authority alone. A harvester asks all the time, and
loses nothing while control is killed, a machine joins, and a machine leaves.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

import mainnet
from certificates import Authority
from control_stage import a_client
from gpupool.core.errors import GpupoolError
from gpupool.core.files import ensure_private_dir, write_private
from gpupool.core.home import Home
from gpupool.recompute.client import AsyncClient, ClientOptions, Host
from gpupool.recompute.demo import quality_request
from gpupool.runtimes.process.cleanup import end_recorded
from light_pool import LightPool, Member
from polling import eventually
from up_run import free_ports, share_kernels

pytestmark = pytest.mark.timeout(400)
PATIENCE = 150.0
"""Kernels may have to be compiled, beside everything else."""
LEVEL = 1


class Asking:
    """A harvester that never stops."""

    def __init__(self, port: int) -> None:
        self._options = ClientOptions(hosts=(Host("127.0.0.1", port),), timeout_s=30.0)
        self.answered = 0
        self.faults: list[str] = []

    async def run(self) -> None:
        async with AsyncClient(self._options) as client:
            while True:
                proof = mainnet.K32[self.answered % len(mainnet.K32)]
                try:
                    await client.look_up_quality(quality_request(proof, LEVEL))
                    self.answered += 1
                except GpupoolError as error:
                    self.faults.append(error.message)
                await asyncio.sleep(0.05)

    async def more(self, count: int = 8) -> None:
        """Return after so many answers more."""
        had = self.answered
        await eventually(lambda: self.answered >= had + count, PATIENCE, "the harvester being answered")


@asynccontextmanager
async def asking(port: int) -> AsyncIterator[Asking]:
    made = Asking(port)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Nodes:
    """What the proxy has behind it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def answered(self) -> dict[str, int] | None:
        """Return how many requests each node has answered; None while the proxy does not listen."""
        try:
            reply = await self._client.get("/v1/nodes")
        except httpx.TransportError:
            return None
        return {node["name"]: node["answered"] for node in reply.json()["nodes"]}

    async def used(self, count: int) -> dict[str, int]:
        """Return the nodes once there are ``count``, each of which answers from now on."""
        before: dict[str, int] = {}

        async def look() -> dict[str, int] | None:
            now = await self.answered()
            if now is None or len(now) != count:
                return None
            for name, answers in now.items():
                before.setdefault(name, answers)
            return now if all(now[name] > before[name] for name in now) else None

        return await eventually(look, PATIENCE, f"{count} nodes at work behind the proxy")


def member(role: str, arguments: list[str], folder: Path, **variables: str) -> Member:
    return Member(role, arguments, variables, folder / f"{role}.log")


def certify(home: Home, authority: Authority, name: str) -> None:
    """Lay the certificate of a machine's recompute servers where its agent looks for it."""
    folder = ensure_private_dir(ensure_private_dir(home.keys) / "recompute")
    pair = authority.issue(name)
    write_private(folder / "tls.pem", pair.certificate.read_text())
    write_private(folder / "tls.key", pair.key.read_text())


def second_machine(pool: LightPool, folder: Path, authority: Authority) -> Member:
    """An agent on a state folder of its own, which has nothing of the pool but the join token."""
    home = Home(folder / "second")
    share_kernels(home.root)
    ensure_private_dir(home.keys)
    certify(home, authority, "second")
    write_private(home.keys / "join.token", (pool.home.keys / "join.token").read_text().strip())
    variables = {
        **pool.agent.env,
        "GPUPOOL_HOME": str(home.root),
        "GPUPOOL_NODE_NAME": "second",
        "GPUPOOL_MACHINE_IDENTITY": "second",
    }
    return member("second", ["agent", "run"], folder, **variables)


def more_than_half_a_node() -> int:
    """Memory (MiB) of which a node's cpu device, half of the machine, holds one part and not two."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return total * 3 // 10


async def test_servers_come_and_go_and_control_dies_and_no_look_up_is_lost(tmp_path: Path) -> None:
    port, authority = free_ports(1)[0], Authority(tmp_path)
    async with LightPool(tmp_path / "pool") as pool, a_client(f"http://127.0.0.1:{port}", {}) as http:
        share_kernels(pool.home.root)
        certify(pool.home, authority, "first")
        await pool.start()
        await pool.deploy(
            "recompute",
            kind="recompute",
            command=[
                "python",
                "-m",
                "gpupool",
                "recompute",
                "serve",
                "--host",
                "{host}",
                "--port",
                "{port}",
                "-r",
                "1",
            ],
            health="/readyz",
            tls=True,
            memory_mb=more_than_half_a_node(),
            start_timeout=180,
            concurrency=1,
        )
        await pool.try_once("POST", "/v1/workloads/recompute/scale", json={"wanted": 2})
        feed = ["--control", pool.url, "--token-file", str(pool.home.service_token)]
        feed += ["--node-tls", str(authority.certificate)]
        proxy = member("proxy", ["recompute", "proxy", "-p", str(port), *feed], tmp_path)
        second = second_machine(pool, tmp_path, authority)
        nodes = Nodes(http)
        proxy.start()
        try:
            await eventually(nodes.answered, PATIENCE, "the proxy learning of the server")
            async with asking(port) as harvester:
                await harvester.more()
                (first,) = await nodes.used(1)
                harvester.faults.clear()
                with pytest.raises(httpx.TransportError):
                    await http.get(f"http://{first}/readyz")

                pool.control.kill()
                await harvester.more()
                assert list(await nodes.used(1)) == [first]
                pool.control.start()

                second.start()
                assert first in await nodes.used(2)

                second.send(signal.SIGTERM)
                assert await second.ended() == 0
                assert list(await nodes.used(1)) == [first]
                await harvester.more()
                assert harvester.faults == []
            assert "feed_lost" in proxy.log.read_text()
        finally:
            proxy.kill()
            second.kill()
            end_recorded(tmp_path / "second" / "agent" / "runs")
