"""Everything killed at once, with and without a restart of the machine: records that lie do no harm."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpupool.core.processes import ProcessIdentity, identify
from light_pool import LightPool, endpoints, port_of

OTHER_BOOT = "00000000-0000-0000-0000-000000000000"


async def test_control_and_agent_killed_together_find_everything_again(tmp_path: Path) -> None:
    async with LightPool(tmp_path) as pool:
        await pool.start()
        await pool.deploy()
        before = await pool.active()
        processes = pool.processes()
        for member in (pool.control, pool.agent):
            member.send(signal.SIGKILL)
        after = await pool.active()
        assert [item["id"] for item in after["placements"]] == [item["id"] for item in before["placements"]]
        assert pool.processes() == processes
        await pool.check_sound()
        assert (pool.control.starts, pool.agent.starts) == (2, 2), pool.logs()


async def test_after_a_restart_of_the_machine_everything_runs_again(tmp_path: Path) -> None:
    """Stale pid and port files name strangers by now, and the machine has another address."""
    async with LightPool(tmp_path) as pool:
        await pool.start()
        await pool.deploy()
        (address,) = endpoints(await pool.active())
        for member in (pool.control, pool.agent):
            member.kill()
        for process in pool.processes():
            process.signal(signal.SIGKILL)
            assert process.wait_gone(20)
        with stranger() as someone, socket.create_server(("127.0.0.2", port_of(address))):
            pretend_restart(pool, someone)
            pool.agent.env["GPUPOOL_NODE_ADDRESS"] = "127.0.0.2"
            await pool.start()
            after = await pool.active()
            (moved,) = endpoints(after)
            assert moved.startswith("127.0.0.2:")
            assert port_of(moved) != port_of(address)
            assert after["placements"][1]["reason"] == "lost: machine restarted"
            await pool.check_sound()
            assert someone.alive()


@contextmanager
def stranger() -> Iterator[ProcessIdentity]:
    """Yield a process that has nothing to do with the pool."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        identity = identify(process.pid)
        assert identity is not None
        yield identity
    finally:
        process.kill()
        process.communicate()


def pretend_restart(pool: LightPool, someone: ProcessIdentity) -> None:
    """Let every record on disk be of an earlier boot, with a pid that somebody else has now."""
    records = [*pool.home.run.glob("*.json"), *(pool.home.agent / "runs").glob("*/record.json")]
    assert len(records) == 3
    for path in records:
        record = json.loads(path.read_text())
        record["process"] |= {"pid": someone.pid, "boot_id": OTHER_BOOT}
        path.write_text(json.dumps(record))
