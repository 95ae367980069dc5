"""The two validators that one contract suite runs against: the embedded market, and the real one's own code.

The real one needs a checkout of its public repository in ``CHUTES_API_SOURCE`` and an environment with what it imports,
whose Python is ``CHUTES_API_PYTHON``; `make test-validator` sets both. It runs as three processes beside a PostgreSQL
and a Redis of its own.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from control_stage import a_client
from gpupool.fleet.ports.validator import GpuFacts, Validator
from gpupool.market.declared import wrapping_key
from gpupool.validators.chutes.client import ChutesValidator
from gpupool.validators.hotkeys import Hotkey
from market_stage import MINER, MarketProcess, ScriptedInstance, a_gpu
from polling import eventually
from postgres_server import PostgresServer
from up_run import free_ports
from validator_case.standin import toy_key

SOURCE = "CHUTES_API_SOURCE"
PYTHON = "CHUTES_API_PYTHON"
CASE = Path(__file__).resolve().parent / "validator_case"
CHUTE = "c0ffee00-0000-5000-8000-000000000001"
VALIDATOR_SEED = "971c2a6674d0861ade72297d11110ce21c93734210527c8f4c9190c00139ce20"
"""Of the public development pair in the validator's own compose file."""
STRANGER = Hotkey(bytes.fromhex("44" * 32))


class Counterpart(Protocol):
    """One validator with a chute that nobody serves and a miner that it knows."""

    chute_id: str
    http: httpx.AsyncClient

    @property
    def api(self) -> str:
        """Where its REST interface is."""
        ...

    @property
    def events(self) -> str:
        """Where it broadcasts."""
        ...

    def key(self, asked: dict[str, Any]) -> bytes:
        """Return what opens the key that an instance is given."""
        ...

    def gpu(self, number: int, **more: Any) -> GpuFacts:
        """Return a GPU that it takes; numbers 0 and 1 can be verified."""
        ...

    @property
    def where(self) -> dict[str, Any]:
        """Return where GPUs 0 and 1 answer challenges."""
        ...


def miner_of(counterpart: Counterpart, key: Hotkey = MINER) -> AbstractAsyncContextManager[Validator]:
    """Return a miner's client; use it as an async context manager."""
    return ChutesValidator("validator", counterpart.api, key)


def instance_of(counterpart: Counterpart, token: str) -> ScriptedInstance:
    """Return an instance that speaks with a token."""
    return ScriptedInstance(counterpart.http, token, base=counterpart.api, key=counterpart.key)


@dataclass
class MarketCounterpart:
    """The embedded market."""

    api: str
    chute_id: str
    http: httpx.AsyncClient

    @property
    def events(self) -> str:
        """Where it broadcasts."""
        return self.api

    def key(self, asked: dict[str, Any]) -> bytes:
        """Return what opens the key that an instance is given."""
        return wrapping_key(asked["seed"], asked["symmetric_key"]["uuid"])

    def gpu(self, number: int, **more: Any) -> GpuFacts:
        """Return an A6000."""
        return a_gpu(number, **more)

    @property
    def where(self) -> dict[str, Any]:
        """Return a server."""
        return {"server_id": "srv-1", "server_name": "srv-1", "host": "127.0.0.1", "port": 30_050}


@asynccontextmanager
async def market(folder: Path) -> AsyncIterator[Counterpart]:
    """Run the embedded market."""
    async with MarketProcess(folder) as process:
        chute = await process.publish(include=[], min_vram_gb=16, target=3)
        yield MarketCounterpart(process.url, chute["chute_id"], process.client)


@dataclass
class RealCounterpart:
    """The real validator's code."""

    api: str
    events: str
    http: httpx.AsyncClient
    bootstrap_port: int
    chute_id: str = CHUTE

    def key(self, asked: dict[str, Any]) -> bytes:
        """Return the toy cipher's key."""
        return toy_key(asked["seed"], asked["symmetric_key"]["uuid"], asked["iterations"])

    def gpu(self, number: int, **more: Any) -> GpuFacts:
        """Return a 3090, of which the stand-in for the node has the first two."""
        facts: dict[str, Any] = {
            "uuid": f"{20 + number:032x}",
            "name": "NVIDIA GeForce RTX 3090",
            "memory_bytes": 25_438_126_080,
            "processors": 82,
            "clock_khz": 1_695_000.0,
            "max_threads_per_processor": 1024,
            "index": number % 10,
            "short_ref": "3090",
            "facts": {},
        }
        return GpuFacts(**(facts | more))

    @property
    def where(self) -> dict[str, Any]:
        """Return the server that the stand-in answers for."""
        return {
            "server_id": "srv-1",
            "server_name": "srv-1",
            "host": "127.0.0.1",
            "port": self.bootstrap_port,
        }


@dataclass
class Processes:
    """Programs that end with the test."""

    folder: Path
    env: dict[str, str]
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self, name: str, *words: str, cwd: str | None = None) -> None:
        """Start a program, its output in a file of its name."""
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        child = subprocess.Popen(
            words,
            env=self.env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.stack.callback(child.wait)
        self.stack.callback(lambda: os.killpg(child.pid, 9))


@asynccontextmanager
async def real(folder: Path) -> AsyncIterator[Counterpart]:
    """Run the real validator's code."""
    source, python = os.environ[SOURCE], os.environ[PYTHON]
    api, events, redis, graval, bootstrap = free_ports(5)
    server = PostgresServer()
    server.start()
    server.sql("CREATE DATABASE chutes")
    psql = ["-h", str(server.folder), "-U", "gpupool", "-d", "chutes"]
    env = os.environ | {
        "CHUTES_API_SRC": source,
        "POSTGRESQL": f"postgresql+asyncpg://gpupool@/chutes?host={server.folder}",
        "REDIS_URL": f"redis://127.0.0.1:{redis}/0",
        "VALIDATOR_SS58": Hotkey(bytes.fromhex(VALIDATOR_SEED)).address,
        "VALIDATOR_SEED": VALIDATOR_SEED,
        "OPENCL_GRAVAL_URL": f"http://127.0.0.1:{graval}",
        "SKIP_GPU_VERIFICATION": "false",
        "DEVICE_INFO_CHALLENGE_COUNT": "3",
        "PYTHONPATH": f"{CASE / 'shim'}:{CASE}:{source}",
    }
    own = os.environ | {"PYTHONPATH": f"{CASE.parent}:{CASE.parents[1] / 'src'}"}
    bins = str(Path(python).parent)
    with Processes(folder, env).stack as stack:
        theirs, ours = Processes(folder, env, stack), Processes(folder, own, stack)
        stack.callback(server.close)
        theirs.start("redis", "redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", "")
        uvicorn = [f"{bins}/uvicorn", "--log-level", "warning"]
        theirs.start("api", *uvicorn, "app:app", "--port", str(api))
        async with a_client(f"http://127.0.0.1:{api}", {}) as client:
            await _answers(client, "/nodes/supported")
            _migrate(Path(source), psql)
            _seed(psql)
            _tell_redis(redis, "price:tao", "400")
            _tell_redis(redis, f"scale:{CHUTE}", "3")
            theirs.start("events", *uvicorn, "api.socket_server:app", "--port", str(events), cwd=source)
            worker = [f"{bins}/taskiq", "worker", "--workers", "1", "api.graval_worker:broker"]
            theirs.start("worker", *worker, cwd=source)
            standin = [sys.executable, str(CASE / "standin.py")]
            ours.start("graval", *standin, "graval", str(graval))
            ours.start("bootstrap", *standin, "bootstrap", str(bootstrap), MINER.address)
            where = f"http://127.0.0.1:{api}", f"http://127.0.0.1:{events}"
            yield RealCounterpart(*where, client, bootstrap)


async def _answers(client: httpx.AsyncClient, path: str) -> None:
    async def look() -> bool:
        try:
            return (await client.get(path)).status_code == 200
        except httpx.TransportError:
            return False

    await eventually(look, what=f"an answer of {path}")


def _migrate(source: Path, psql: list[str]) -> None:
    """Apply the up half of each migration; what the models made before is there already, which each file may say."""
    for file in sorted((source / "api" / "migrations").glob("*.sql")):
        up = file.read_text().partition("-- migrate:down")[0]
        lines = [line for line in up.splitlines() if not line.strip().startswith(("#", "-- migrate:up"))]
        subprocess.run(
            ["psql", "-q", *psql, "-f", "-"],
            input="\n".join(lines),
            text=True,
            capture_output=True,
            check=False,
        )


def _seed(psql: list[str]) -> None:
    variables = shlex.split(f"-v miner={MINER.address} -v chute={CHUTE} -v ON_ERROR_STOP=1")
    subprocess.run(
        ["psql", "-q", *psql, *variables, "-f", str(CASE / "seed.sql")], check=True, capture_output=True
    )


def _tell_redis(port: int, key: str, value: str) -> None:
    command = ["redis-cli", "-p", str(port), "set", key, value]
    subprocess.run(command, check=True, capture_output=True)
