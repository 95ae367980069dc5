"""Several controls on one PostgreSQL database: one leads, whoever dies or sleeps is followed, nothing is decided twice."""

import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from control_stage import a_client
from fleet_pool import FleetPool
from light_pool import Member
from redis_server import RedisServer
from up_run import free_ports


class Company(FleetPool):
    """A pool whose agents are linked to the second of two controls; the first one leads."""

    def __init__(self, folder: Path, **variables: str) -> None:
        super().__init__(folder, nodes=2, **variables)
        self.first, self.first_url = self.control, self.url
        (port,) = free_ports(1)
        self.second_home = folder / "second"
        env = self.control.env | {
            "GPUPOOL_HOME": str(self.second_home),
            "GPUPOOL_CONTROL_PORT": str(port),
            "GPUPOOL_CONTROL_URL": f"http://127.0.0.1:{port}",
        }
        self.second = Member("control", ["control", "serve"], env, folder / "second.log")
        self.second_url = env["GPUPOOL_CONTROL_URL"]
        for member in self.agents:
            member.env |= {"GPUPOOL_CONTROL_URL": self.second_url}

    async def start(self) -> None:
        """Start the first control alone, so that it leads, then the second one and the agents."""
        self.first.start()
        await self.until(lambda: self.try_once("GET", "/readyz"), "the first control")
        shutil.copytree(self.home.keys, self.second_home / "keys")
        self.second_home.chmod(0o700)
        self.second.start()
        self._ask_the_second()
        await self.until(lambda: self.try_once("GET", "/readyz"), "the second control")
        self.agent.start()
        for node in self.further:
            node.start(self.home.join_token.read_text())
        await self.until(self.all_ready, "every node ready")

    def _ask_the_second(self) -> None:
        assert self._client is not None
        self.url = self._client.base_url = self.second_url
        self.control = self.second

    async def __aexit__(self, *told: object) -> None:
        for member in (self.first, self.second):
            member.kill()
        await super().__aexit__(*told)

    async def ask_first(self, path: str) -> Any:
        """Return what the first control answers."""
        async with a_client(self.first_url, {"Authorization": f"Bearer {self.token}"}) as client:
            reply = await client.get(path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def leader_changes(self) -> list[str]:
        """Return who began to lead, in order."""
        told = self.server.sql(
            "SELECT subject FROM events WHERE kind = 'control.leads' ORDER BY seq",
            str(self.database.url.database),
        )
        return told.split()


@pytest_asyncio.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Company]:
    async with Company(tmp_path) as running:
        await running.start()
        yield running


async def once_placed(pool: Company, name: str) -> list[str]:
    """Return the placements of a workload that is as wanted, final ones included."""
    return [item["id"] for item in (await pool.active(name))["placements"]]


async def test_both_answer_alike_and_work_goes_where_it_is_asked_for(pool: Company) -> None:
    await pool.deploy("asked-at-the-follower")
    (placement,) = await once_placed(pool, "asked-at-the-follower")

    async def same() -> bool:
        shown = await pool.ask_first("/v1/placements?live=true")
        return [item["id"] for item in shown] == [placement] and shown[0]["state"] == "active"

    await pool.until(same, "the same at the leader")
    assert len(pool.leader_changes()) == 1
    await pool.check_sound()


async def test_a_leader_that_dies_is_followed_within_seconds(pool: Company) -> None:
    await pool.deploy("before")
    before = await once_placed(pool, "before")
    pool.first.kill()
    await pool.deploy("after")
    await pool.until(lambda: len(pool.leader_changes()) == 2, "another leader")
    await once_placed(pool, "after")
    assert await once_placed(pool, "before") == before
    await pool.check_sound()


async def test_a_leader_that_sleeps_loses_the_lead_and_decides_nothing_when_it_wakes(pool: Company) -> None:
    await pool.deploy("before")
    before = await once_placed(pool, "before")
    pool.first.send(signal.SIGSTOP)
    try:
        await pool.until(lambda: len(pool.leader_changes()) == 2, "another leader")
        await pool.deploy("meanwhile", replicas=2)
        meanwhile = await once_placed(pool, "meanwhile")
    finally:
        pool.first.send(signal.SIGCONT)

    async def follows() -> bool:
        shown = await pool.ask_first("/v1/placements?live=true&limit=1000")
        return {item["id"] for item in shown} == {*before, *meanwhile}

    await pool.until(follows, "the one that woke to see what the other has decided")
    await pool.deploy("later")
    await once_placed(pool, "later")
    assert await once_placed(pool, "meanwhile") == meanwhile
    assert await once_placed(pool, "before") == before
    assert len(pool.leader_changes()) == 2, "the one that woke led again"
    await pool.check_sound()


async def test_a_follower_that_dies_costs_the_agents_a_link_and_nothing_else(pool: Company) -> None:
    await pool.deploy("kept")
    kept, processes = await once_placed(pool, "kept"), pool.processes()
    pool.second.kill()
    assert await once_placed(pool, "kept") == kept
    assert pool.processes() == processes
    assert len(pool.leader_changes()) == 1
    await pool.check_sound()


@pytest.mark.parametrize("fate", ["stopped", "flushed"])
async def test_redis_may_die_or_forget_everything(tmp_path: Path, fate: str) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder) as redis:
        async with Company(tmp_path / "pool", GPUPOOL_REDIS_URL=redis.url) as pool:
            await pool.start()
            await pool.deploy("before")
            before = await once_placed(pool, "before")
            redis.flush() if fate == "flushed" else redis.stop()
            await pool.deploy("meanwhile")
            await once_placed(pool, "meanwhile")
            if fate == "stopped":
                redis.start()
            await pool.deploy("after")
            await once_placed(pool, "after")
            assert await once_placed(pool, "before") == before
            await pool.check_sound()


async def test_a_control_with_other_keys_is_refused(pool: Company, tmp_path: Path) -> None:
    stranger = Member(
        "control",
        ["control", "serve"],
        pool.second.env | {"GPUPOOL_HOME": str(tmp_path / "third")},
        tmp_path / "third.log",
    )
    stranger.env |= {"GPUPOOL_CONTROL_PORT": str(free_ports(1)[0])}
    stranger.start()
    assert await stranger.ended() == 5
    assert "keys of this control are not those of" in stranger.log.read_text()
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{pool.second_url}/readyz")).status_code == 200
