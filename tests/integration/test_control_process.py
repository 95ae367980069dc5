"""Control as a process: what it leaves on disk, how it ends, and what it refuses to start on."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from control_stage import a_client
from gpupool.core.records import ProcessRecord
from polling import eventually

_PROGRAM = """
import sys
from gpupool.cli.control import app
from gpupool.core.errors import GpupoolError
try:
    app(["serve", *sys.argv[1:]])
except GpupoolError as error:
    print(f"{error.message} | {error.remedy}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


class ControlProcess:
    """One control on a state folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        """Start it on a free port, unless the arguments say otherwise."""
        environment = {**os.environ, "GPUPOOL_HOME": str(self.home), "GPUPOOL_CONTROL_PORT": "0", **variables}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self._process

    async def ready(self) -> ProcessRecord:
        """Return its record once it listens."""
        path = self.home / "run" / "control.json"
        await eventually(lambda: ProcessRecord.read(path) is not None, what="a process record")
        record = ProcessRecord.read(path)
        assert record is not None
        return record

    async def ended(self) -> tuple[int, str]:
        """Return exit code and what it wrote."""
        assert self._process is not None
        _, told = await asyncio.to_thread(self._process.communicate, timeout=60)
        return self._process.returncode, told

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    process = ControlProcess(tmp_path / "home")
    yield process
    process.kill()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[ControlProcess]:
    process = ControlProcess(tmp_path / "home")
    yield process
    process.kill()


def operator(control: ControlProcess, record: ProcessRecord) -> httpx.AsyncClient:
    token = (control.home / "keys" / "operator.token").read_text().strip()
    return a_client(record.url or "", {"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_starts_from_nothing_and_ends_politely_under_long_polls(
    control: ControlProcess, number: signal.Signals
) -> None:
    process = control.start(GPUPOOL_INSTANCE_ID="inst-mine")
    record = await control.ready()
    assert (record.role, record.instance_id, record.process.pid) == ("control", "inst-mine", process.pid)
    async with operator(control, record) as client:
        assert (await client.get("/healthz")).json()["instance_id"] == "inst-mine"
        held = asyncio.create_task(client.get("/v1/events", params={"after": 1000, "wait": 60}))

        async def is_held() -> bool | None:
            return await _open_requests(client) == 2

        held_now: bool = await eventually(is_held, what="the held request")
        assert held_now
        process.send_signal(number)
        assert (await held).json() == []
    code, told = await control.ended()
    assert code == 0, told
    assert "Traceback" not in told
    assert not (control.home / "run" / "control.json").exists()


async def _open_requests(client: httpx.AsyncClient) -> float:
    """Return how many requests control is answering, this one included."""
    lines = (await client.get("/metrics")).text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("gpupool_control_open_requests ")))


async def test_its_secrets_are_its_owners_only_and_stay(control: ControlProcess) -> None:
    process = control.start()
    await control.ready()
    keys = {path.name: path.read_text() for path in (control.home / "keys").iterdir()}
    assert set(keys) == {"operator.token", "service.token", "join.token", "seal.key"}
    assert len(set(keys.values())) == 4
    for path in (*(control.home / "keys").iterdir(), control.home / "data" / "pool.db"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(control.home.stat().st_mode) == 0o700
    process.terminate()
    assert (await control.ended())[0] == 0
    control.start()
    await control.ready()
    assert {path.name: path.read_text() for path in (control.home / "keys").iterdir()} == keys


async def test_a_taken_port_is_seen_before_anything_starts(control: ControlProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        control.start("--port", str(port))
        code, told = await control.ended()
    assert code == 3
    assert f"Port {port} on 127.0.0.1, wanted by control, is taken" in told
    assert "GPUPOOL_CONTROL_PORT" in told
    assert not (control.home / "data" / "pool.db").exists()


async def test_a_second_control_on_the_same_folder_is_refused(
    control: ControlProcess, second: ControlProcess
) -> None:
    process = control.start()
    record = await control.ready()
    second.start()
    code, told = await second.ended()
    assert code == 5
    assert f"pid {process.pid}" in told
    assert ProcessRecord.read(control.home / "run" / "control.json") == record


async def test_after_a_kill_the_next_one_starts_on_the_same_state(
    control: ControlProcess, second: ControlProcess
) -> None:
    control.start()
    record = await control.ready()
    async with operator(control, record) as client:
        spec = {"name": "demo", "command": ["serve"]}
        assert (await client.post("/v1/workloads", json={"spec": spec})).status_code == 201
    control.kill()
    second.start(GPUPOOL_INSTANCE_ID="inst-next")
    path = control.home / "run" / "control.json"
    await eventually(lambda: _instance(path) == "inst-next", what="the next control")
    async with operator(second, await second.ready()) as client:
        names = [workload["name"] for workload in (await client.get("/v1/workloads")).json()]
    assert names == ["demo"]


def _instance(path: Path) -> str | None:
    record = ProcessRecord.read(path)
    return record.instance_id if record else None


async def test_a_database_that_is_none_is_refused_with_words(control: ControlProcess) -> None:
    data = control.home / "data"
    data.mkdir(parents=True)
    (data / "pool.db").write_text("this is no database, it is a letter to the operator\n" * 50)
    control.start()
    code, told = await control.ended()
    assert code == 3
    assert "Traceback" not in told
    assert str(data / "pool.db") in told


async def test_a_wrong_setting_is_named(control: ControlProcess) -> None:
    control.start(GPUPOOL_CONTROL_PORT="many")
    code, told = await control.ended()
    assert code == 2
    assert "control_port" in told
