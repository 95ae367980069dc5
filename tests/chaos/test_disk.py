"""The data folder's disk: not writable, or full while the pool runs."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from gpupool.core.home import Home
from gpupool.runtimes.process.cleanup import end_all
from light_pool import LightPool, endpoints
from small_disk import SmallDisk
from up_run import UpRun

ROLES = (["control", "serve"], ["agent", "run"], ["gateway", "serve"], ["up", "--no-demo"])


class PoolOnSmallDisk(LightPool):
    """A pool whose whole state folder lies on a small disk."""

    def __init__(self, folder: Path, disk: SmallDisk) -> None:
        super().__init__(folder)
        assert disk.path == self.home.root
        self.home = Home(disk.seen)
        self.disk, self.control.prefix, self.agent.prefix = disk, disk.prefix, disk.prefix

    def queued_commands(self) -> int:
        """Ask on the disk's own side: SQLite does not find its way through /proc."""
        query = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM commands'))"
        told = subprocess.run(
            [*self.disk.prefix, sys.executable, "-c", query, self.disk.path / "data" / "pool.db"],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(told.stdout.strip("(),\n"))


@pytest.mark.parametrize("arguments", ROLES, ids=lambda arguments: str(arguments[0]))
def test_a_folder_that_cannot_be_written_is_told_before_anything_starts(
    tmp_path: Path, arguments: list[str]
) -> None:
    with SmallDisk(tmp_path / "home") as disk:
        disk.remount("ro")
        run = UpRun(tmp_path / "elsewhere")
        refused = subprocess.run(
            [*disk.prefix, sys.executable, "-P", "-m", "gpupool", *arguments],
            env={**run.env, "GPUPOOL_HOME": str(disk.path), "GPUPOOL_CONTROL_PORT": str(run.ports[0])}
            | {"GPUPOOL_GATEWAY_PORT": str(run.ports[1]), "GPUPOOL_RECOMPUTE_PORT": str(run.ports[2])},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert list(disk.seen.iterdir()) == []
    assert refused.returncode == 3, refused.stderr
    assert f"The folder {disk.path}" in refused.stderr
    assert "Read-only file system" in refused.stderr
    assert "GPUPOOL_HOME" in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_a_full_disk_costs_changes_only_while_it_is_full(tmp_path: Path) -> None:
    """Reads go on, changes are refused in words, nothing acknowledged is lost, and space alone mends it."""
    with SmallDisk(tmp_path / "home") as disk:
        async with PoolOnSmallDisk(tmp_path, disk) as pool:
            await pool.start()
            await pool.deploy("serving")
            (address,) = endpoints(await pool.active("serving"))
            disk.fill()
            acknowledged, refusal = await want_until_refused(pool)
            assert (refusal.status_code, refusal.json()["code"]) == (500, "storage")
            assert "full" in refusal.json()["detail"]
            assert "space" in refusal.json()["remedy"]
            assert await names(pool) == {"serving", *acknowledged}
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(f"http://{address}/")).status_code == 200
            starts = pool.control.starts, pool.agent.starts
            assert (pool.control.runs, pool.agent.runs) == (True, True)
            disk.free()
            await pool.deploy("later")
            await pool.active("later")
            await pool.check_sound()
            assert (pool.control.starts, pool.agent.starts) == starts
            pool.control.kill()
            assert await names(pool) == {"serving", "later", *acknowledged}


async def test_an_order_waits_for_space_on_the_nodes_disk(tmp_path: Path) -> None:
    """The agent acknowledges nothing that it cannot keep; the order comes again once it can."""
    with SmallDisk(tmp_path / "node") as disk, ExitStack() as after:
        # The pool ends only the runs of its own folder; these are found by their marks.
        after.callback(end_all, disk.path / "agent" / "runs", [], (), 5.0)
        async with LightPool(tmp_path / "pool") as pool:
            pool.agent.prefix = disk.prefix
            pool.agent.env |= {
                "GPUPOOL_HOME": str(disk.path),
                "GPUPOOL_JOIN_TOKEN_FILE": str(pool.home.join_token),
            }
            await pool.start()
            disk.fill()
            await pool.deploy()
            await pool.until(lambda: "cannot be written" in pool.agent.log.read_text(), "a failed journal")
            assert pool.agent.runs
            disk.free()
            await pool.active()
            assert pool.agent.starts == 1


async def want_until_refused(pool: LightPool) -> tuple[list[str], httpx.Response]:
    """Want one workload after another until control refuses; return the acknowledged ones and the refusal."""
    taken: list[str] = []
    while True:
        name = f"wanted-{len(taken)}"
        spec = {"name": name, "command": ["x"], "replicas": 0, "env": {"FILLING": "x" * 4000}}
        reply = await pool.try_once("POST", "/v1/workloads", json={"spec": spec})
        assert reply is not None, pool.logs()
        if reply.status_code != httpx.codes.CREATED:
            return taken, reply
        taken.append(name)


async def names(pool: LightPool) -> set[str]:
    """Return the names of all workloads."""
    return {workload["name"] for workload in await pool.get("/v1/workloads")}
