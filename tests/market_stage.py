"""A real market process, a miner with a hotkey, and an instance that speaks for itself, for tests."""

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from control_stage import a_client
from gpupool.core.home import Home
from gpupool.core.records import ProcessRecord
from gpupool.fleet.ports.validator import GpuFacts
from gpupool.market.declared import wrapping_key
from gpupool.market.sealing import opened_whole, sealed
from gpupool.validators.chutes.client import ChutesValidator
from gpupool.validators.hotkeys import Hotkey
from light_pool import Member
from polling import eventually

MINER = Hotkey(bytes.fromhex("11" * 32))
OTHER = Hotkey(bytes.fromhex("22" * 32))
VALIDATOR = Hotkey(bytes.fromhex("33" * 32))
PORTS = ((8000, "tcp", True), (8001, "tcp", False))


class MarketProcess:
    """`gpupool market serve` on a state folder of its own. Use as an async context manager."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.home = Home(folder / "market")
        env = {"GPUPOOL_HOME": str(self.home.root), **variables}
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "market.log"
        self.process = Member("market", ["market", "serve", "--port", "0"], env, self.log)
        self._client: httpx.AsyncClient | None = None
        self._image = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.process.kill()
        if self._client is not None:
            await self._client.aclose()

    async def start(self) -> None:
        """Start it and return when it listens."""
        record = self.home.run / "market.json"
        record.unlink(missing_ok=True)
        self.process.start()
        await eventually(lambda: record.exists() or self._died(), what="a market that listens")
        if self._client is not None:
            await self._client.aclose()
        self._client = a_client(self.url, {"Authorization": f"Bearer {self.token}"})

    def _died(self) -> bool:
        assert self.process.runs, self.log.read_text()
        return False

    @property
    def url(self) -> str:
        """Where it listens."""
        record = ProcessRecord.read(self.home.run / "market.json")
        assert record is not None
        assert record.url is not None
        return record.url

    @property
    def token(self) -> str:
        """The operator token."""
        return self.home.operator_token.read_text().strip()

    @property
    def client(self) -> httpx.AsyncClient:
        """Asks with the operator token."""
        assert self._client is not None
        return self._client

    async def own(self, method: str, path: str, /, **body: Any) -> Any:
        """Return what the market answers its owner."""
        reply = await self.client.request(method, path, json=body or None)
        assert reply.status_code < 300, reply.text
        return reply.json()

    async def publish(self, name: str = "hello", **more: Any) -> dict[str, Any]:
        """Publish a chute, and its image before the first one."""
        if not self._image:
            await self.own("POST", "/market/images", user="ada", name="base", tag="1.0")
            self._image = True
        chute = {
            "user": "ada",
            "name": name,
            "image": "ada/base:1.0",
            "filename": "app.py",
            "ref_str": "app:chute",
            "code": "chute = 1",
            "include": ["a6000"],
            "cords": [{"path": "/run", "method": "POST"}],
        }
        published: dict[str, Any] = await self.own("POST", "/market/chutes", **(chute | more))
        return published

    def miner(self, key: Hotkey = MINER) -> ChutesValidator:
        """Return a miner's client; use it as an async context manager."""
        return ChutesValidator(VALIDATOR.address, self.url, key)


def a_gpu(number: int = 0, **more: Any) -> GpuFacts:
    """Return an A6000 as its driver describes it."""
    facts: dict[str, Any] = {
        "uuid": f"{number:032x}",
        "name": "NVIDIA RTX A6000",
        "memory_bytes": 48 * 1024**3,
        "processors": 84,
        "clock_khz": 1_800_000.0,
        "max_threads_per_processor": 1536,
        "index": number % 8,
        "short_ref": "a6000",
        "facts": {"major": 8, "minor": 6},
    }
    return GpuFacts(**(facts | more))


@dataclass
class ScriptedInstance:
    """An instance as the SDK in it would speak: claims, proves, serves."""

    client: httpx.AsyncClient
    token: str
    host: str = "127.0.0.1"
    base: str | None = None
    """Where the validator is, if its tokens name another address."""
    key: Callable[[dict[str, Any]], bytes] = lambda asked: wrapping_key(
        asked["seed"], asked["symmetric_key"]["uuid"]
    )
    """What opens the key that it is given."""

    @property
    def claims(self) -> dict[str, Any]:
        """What its token says."""
        middle = self.token.split(".")[1]
        found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        return found

    async def send(self, method: str, url: str, body: Any = None) -> httpx.Response:
        """Return the answer to one request under its token."""
        if self.base is not None:
            url = self.base + url[url.index("/", len("https://")) :]
        return await self.client.request(method, url, json=body, headers={"Authorization": self.token})

    async def claim(self, gpu_ids: list[str], port: int = 30_100) -> httpx.Response:
        """Say its first word."""
        ports = [
            {"proto": proto, "internal_port": inner, "external_port": port + place, "default": first}
            for place, (inner, proto, first) in enumerate(PORTS)
        ]
        body = {
            "gpus": [{"uuid": gpu_id} for gpu_id in gpu_ids],
            "host": self.host,
            "port_mappings": ports,
            "env": "",
            "code": "",
            "fsv": os.urandom(8).hex(),
        }
        return await self.send("POST", self.claims["url"], body)

    async def prove(self, asked: dict[str, Any], gpu_ids: list[str]) -> httpx.Response:
        """Answer the challenge."""
        wrapped = asked["symmetric_key"]
        key = opened_whole(self.key(asked), wrapped["ciphertext"])
        assert key is not None
        iv, response = sealed(key, wrapped["response_plaintext"])
        work = {"intermediate_hashes": ["00" * 32], "num_matrices": 1, "total_iterations": 1}
        proof = {gpu_id: {"device_uuid": gpu_id, "work_product": work} for gpu_id in gpu_ids}
        return await self.send("PUT", self.claims["url"], {"response": response, "iv": iv, "proof": proof})

    async def begin(self, gpu_ids: list[str], port: int = 30_100) -> dict[str, Any]:
        """Go all the way until it serves, and return what it was granted."""
        claimed = await self.claim(gpu_ids, port)
        assert claimed.status_code == 200, claimed.text
        proved = await self.prove(claimed.json(), gpu_ids)
        assert proved.status_code == 200, proved.text
        granted: dict[str, Any] = proved.json()
        activated = await self.send("GET", granted["activation_url"])
        assert (activated.status_code, activated.json()) == (200, {"ok": True})
        return granted
