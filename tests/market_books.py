"""A market in memory with books on a disk of the test's own and a clock that moves when told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpupool.core.clock import FakeClock
from gpupool.market.declared import DeclaredGpus, wrapping_key
from gpupool.market.instances import activate, claim, expected_words, verify
from gpupool.market.keeping import Books
from gpupool.market.launching import Issuer, issue
from gpupool.market.publishing import ChuteWish, publish, publish_image
from gpupool.market.records import Chute, Instance, JobKind
from gpupool.market.registering import GpuClaim, register, settle_verification
from gpupool.market.sealing import opened_whole, sealed
from gpupool.market.state import Market, News

ISSUER = Issuer("s" * 43, "http://market")
PROOF = DeclaredGpus()
KEY = "5e" * 16


class Bench:
    """One market, and what it has told its miners."""

    def __init__(self, path: Path, clock: FakeClock | None = None) -> None:
        self.path = path
        self.clock = clock or FakeClock()
        self.market = Market(Books(path), self.clock)
        self.news: list[News] = []
        self.market.listeners.append(self.news.append)

    @property
    def reasons(self) -> list[str]:
        """Return why it spoke, in order."""
        return [news.reason for news in self.news]

    async def publish(self, name: str = "hello", **more: Any) -> Chute:
        """Publish a chute for A6000s."""
        if not self.market.images:
            await publish_image(self.market, "ada", "base", "1.0")
        wish: dict[str, Any] = {
            "user": "ada",
            "name": name,
            "image": "ada/base:1.0",
            "filename": "app.py",
            "ref_str": "app:chute",
            "code": "chute = 1",
            "include": frozenset({"a6000"}),
            "cords": ({"path": "/run"},),
        }
        return await publish(self.market, ChuteWish(**(wish | more)))

    async def gpus(self, hotkey: str, *numbers: int, server: str = "server") -> list[str]:
        """Register and verify A6000s."""
        claims = [
            GpuClaim(
                uuid=f"{number:032x}",
                name="NVIDIA RTX A6000",
                memory=48 * 1024**3,
                processors=84,
                clock_khz=1_800_000.0,
                device_index=number % 8,
                short_ref="a6000",
                host="10.0.0.1",
                port=30_050,
                facts={},
            )
            for number in numbers
        ]
        task_id, gpus = await register(self.market, hotkey, server, server, claims)
        await settle_verification(self.market, task_id, None)
        return [gpu.id for gpu in gpus]

    async def claimed(
        self, hotkey: str, chute: Chute, gpu_ids: list[str], job: str | None = None
    ) -> tuple[str, Any]:
        """Take a token and say an instance's first word; return the token and what was asked."""
        token = ISSUER.token(await issue(self.market, hotkey, chute.id, job))
        said = {
            "gpus": [{"uuid": gpu_id} for gpu_id in gpu_ids],
            "host": "10.0.0.1",
            "port_mappings": [{"proto": "tcp", "internal_port": 8000, "external_port": 30_100}],
        }
        launch, challenge = await claim(self.market, ISSUER, PROOF, token, said, KEY)
        key = opened_whole(wrapping_key(challenge.seed, challenge.uuid), challenge.ciphertext)
        assert key == KEY
        iv, response = sealed(key, expected_words(launch))
        return token, {"iv": iv, "response": response, "proof": {gpu_id: {} for gpu_id in gpu_ids}}

    async def running(
        self, hotkey: str, chute: Chute, gpu_ids: list[str], job: str | None = None
    ) -> Instance:
        """Start an instance and let it serve."""
        token, answer = await self.claimed(hotkey, chute, gpu_ids, job)
        instance = await verify(self.market, ISSUER, PROOF, token, answer)
        return await activate(self.market, instance.id, token, ISSUER)


@asynccontextmanager
async def bench(path: Path, clock: FakeClock | None = None) -> AsyncIterator[Bench]:
    """Open a market's books at ``path``."""
    made = Bench(path, clock)
    await made.market.load()
    try:
        yield made
    finally:
        await made.market.books.close()


TRAINING = (JobKind(name="train", ports=(("tcp", 9000),)),)
