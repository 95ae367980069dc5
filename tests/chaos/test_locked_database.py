"""Another process holds the database: control waits its time, says so, and goes on when the lock is gone."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from light_pool import LightPool


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the write lock of a database."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        yield


async def test_a_locked_database_is_told_and_forgotten(tmp_path: Path) -> None:
    async with LightPool(tmp_path) as pool:
        await pool.start()
        await pool.deploy("before")
        await pool.active("before")
        with held(pool.home.database):
            spec = {"name": "refused", "command": ["x"]}
            reply = await pool.try_once("POST", "/v1/workloads", json={"spec": spec})
            assert reply is not None
            assert (reply.status_code, reply.json()["code"]) == (500, "storage")
            assert "locked" in reply.json()["detail"]
            assert "fuser" in reply.json()["remedy"]
            assert [item["name"] for item in await pool.get("/v1/workloads")] == ["before"]
        await pool.deploy("after")
        await pool.active("after")
        await pool.check_sound()
        assert (pool.control.starts, pool.agent.starts) == (1, 1)


async def test_a_control_that_starts_on_a_locked_database_says_why_it_cannot(tmp_path: Path) -> None:
    async with LightPool(tmp_path) as pool:
        await pool.start()
        await pool.deploy()
        await pool.active()
        pool.control.kill()
        with held(pool.home.database):
            pool.control.start()
            assert await pool.control.ended() == 3
        told = pool.control.log.read_text().splitlines()[-2:]
        assert "locked" in told[0]
        assert "fuser" in told[1]
        await pool.active()
        await pool.check_sound()
