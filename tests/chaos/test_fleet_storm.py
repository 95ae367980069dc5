"""A fleet under load in which everything dies at random, seeded: nothing acknowledged is lost, and it mends itself.

Wishes (deploy, change, scale, delete) and faults (any process or the database killed, frozen, restarted) come in one
random order. Whoever restarts what has died does nothing else. In the end every wish that was acknowledged must hold,
with no claim made twice, no process, port, command or record left over and no gap in the events.
"""

import asyncio
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fleet_pool import SILENCE_SECONDS, FleetPool
from light_pool import LightPool, Member

MOST_CHUTES = 6
SOAK_SECONDS = 90.0


class Storm:
    """One seeded run: what was wished and acknowledged, and what is broken next."""

    def __init__(self, pool: FleetPool, seed: int) -> None:
        self.pool, self.random = pool, random.Random(seed)
        self.wished: dict[str, int] = {}
        """How many deployments of each chute control has promised."""
        self.told: list[str] = []
        self._number = 0

    async def act(self) -> None:
        """Wish something or break something."""
        breaks = [
            self.kill_control,
            self.kill_agent,
            self.kill_agent,
            self.kill_chute,
            self.kill_chute,
            self.freeze_control,
            self.freeze_agent,
            self.restart_database,
            self.crash_database,
        ]
        wishes = [self.deploy, self.deploy, self.change, self.scale, self.delete]
        action = self.random.choice(breaks if self.random.random() < 0.5 else wishes)
        self.told.append(action.__name__)
        await action()

    # -- wishes

    async def deploy(self) -> None:
        if len(self.wished) < MOST_CHUTES:
            self._number += 1
            name = f"chute-{self._number}"
            await self.pool.deploy(name)
            self.wished[name] = 1

    async def change(self) -> None:
        name = self._some()
        if name is not None:
            await self.pool.deploy(name, env={"STAGE": str(self.random.random())})
            self.wished[name] = 1  # as the spec says, whatever it was scaled to

    async def scale(self) -> None:
        name = self._some()
        if name is not None:
            wanted = self.random.randint(0, 3)
            await self._acknowledged("POST", f"/v1/workloads/{name}/scale", json={"wanted": wanted})
            self.wished[name] = wanted

    async def delete(self) -> None:
        name = self._some()
        if name is not None:
            await self.pool.delete(name)
            del self.wished[name]

    async def _acknowledged(self, method: str, path: str, **options: Any) -> None:
        async def look() -> bool:
            reply = await self.pool.ask(method, path, **options)
            assert reply is None or reply.status_code == 200 or reply.status_code >= 500, reply.text
            return reply is not None and reply.status_code == 200

        await self.pool.until(look, f"{method} {path}, acknowledged")

    def _some(self) -> str | None:
        return self.random.choice(sorted(self.wished)) if self.wished else None

    # -- faults

    async def kill_control(self) -> None:
        self.pool.control.kill()

    async def kill_agent(self) -> None:
        self.random.choice(self.pool.agents).kill()

    async def kill_chute(self) -> None:
        processes = sorted(self.pool.processes(), key=lambda process: process.pid)
        if processes:
            self.random.choice(processes).signal(signal.SIGKILL)

    async def freeze_control(self) -> None:
        await self._freeze(self.pool.control, self.random.uniform(0.5, 2.0))

    async def freeze_agent(self) -> None:
        await self._freeze(self.random.choice(self.pool.agents), 1.5 * SILENCE_SECONDS)

    async def restart_database(self) -> None:
        await asyncio.to_thread(self.pool.break_database, signal.SIGINT)

    async def crash_database(self) -> None:
        await asyncio.to_thread(self.pool.break_database, signal.SIGKILL)

    async def _freeze(self, member: Member, seconds: float) -> None:
        if not member.runs:
            return
        member.send(signal.SIGSTOP)
        try:
            await pause(self.pool, seconds, tend=False)
        finally:
            member.send(signal.SIGCONT)


async def pause(pool: LightPool, seconds: float, *, tend: bool = True) -> None:
    """Let the pool work for a while, and start again what dies meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if tend:
            pool.tend()
        await asyncio.sleep(0.05)


async def settled(storm: Storm) -> None:
    """Fail unless every promise holds once nothing breaks any more."""
    pool = storm.pool
    await pool.until(pool.all_ready, "every node back")
    shown = {item["name"]: item["wanted"] for item in await pool.get("/v1/workloads?limit=1000")}
    assert shown == storm.wished, storm.told
    for name, wanted in storm.wished.items():
        found = await pool.active(name)
        assert found["active"] == wanted
    await pool.check_sound()


async def blow(folder: Path, seed: int, *, actions: int | None = None, seconds: float = 0.0) -> None:
    """Run one storm to its end."""
    async with FleetPool(folder) as pool:
        await pool.start()
        storm = Storm(pool, seed)
        give_up = time.monotonic() + seconds
        while len(storm.told) < actions if actions is not None else time.monotonic() < give_up:
            await storm.act()
            await pause(pool, storm.random.uniform(0.0, 0.8))
        await settled(storm)
        for name in list(storm.wished):
            await pool.delete(name)
        await pool.gone()
        await pool.check_sound()
        assert pool.records() == {}


async def test_a_short_storm(tmp_path: Path) -> None:
    await blow(tmp_path, seed=1, actions=16)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 6))
async def test_a_storm_of_minutes(tmp_path: Path, seed: int) -> None:
    await blow(tmp_path, seed=seed, seconds=SOAK_SECONDS)
