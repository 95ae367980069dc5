"""A validator's REST interface, `fleet.ports.validator.Validator` over HTTP; aiohttp's errors end here.

Source: chutes.md sections 2.1 to 2.4. Nothing here decides anything: what a refusal means for the pool is its caller's
to say.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Protocol, Self, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, ValidationError

from gpupool.core.errors import DeadlineError, NotFoundError, UnavailableError
from gpupool.fleet.offers import (
    Bounty,
    Capacity,
    Demand,
    GpuModelRule,
    KnownGpu,
    KnownInstance,
    LaunchToken,
    Listing,
    OfferedChute,
    OfferedImage,
    Registration,
    RollingUpdate,
    Verification,
)
from gpupool.fleet.ports.validator import GpuFacts
from gpupool.validators.chutes import messages, signing
from gpupool.validators.chutes.line_stream import BrokenListError, read_list
from gpupool.validators.chutes.refusals import refusal
from gpupool.validators.chutes.registering import registration_body

ANSWER_SECONDS: Final = 30.0
LIST_SECONDS: Final = 300.0
QUIET_SECONDS: Final = 30.0
"""A list that says nothing for longer has broken off."""
MOST_ANSWER: Final = 16 * 1024 * 1024
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Offering(Protocol[T_co]):
    """A message that the pool knows in a form of its own."""

    @classmethod
    def model_validate(cls, obj: object, /) -> Self:
        """Read it; pydantic's ValidationError where it is no such message."""
        ...

    def offer(self) -> T_co:
        """Return that form."""
        ...


class ChutesValidator:
    """One validator. Use as an async context manager."""

    def __init__(
        self, name: str, api: str, signer: signing.Signer, *, now: Callable[[], float] = time.time
    ) -> None:
        """``name``: its hotkey; ``api``: its address, such as ``https://api.example.com``."""
        self._name, self._api, self._signer, self._now = name, api.rstrip("/"), signer, now
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=10.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def name(self) -> str:
        """Its hotkey."""
        return self._name

    # -- what it lists

    async def chutes(self) -> Listing[OfferedChute]:
        """Return its whole catalog, by id."""
        return await self._list("/miner/chutes/", messages.ChuteItem, "chute_id")

    async def images(self) -> Listing[OfferedImage]:
        """Return all images of its apps, by id."""
        return await self._list("/miner/images/", messages.ImageItem, "image_id")

    async def gpus(self) -> Listing[KnownGpu]:
        """Return our GPUs as it knows them, by uuid."""
        return await self._list("/miner/nodes/", messages.NodeItem, "uuid")

    async def instances(self) -> Listing[KnownInstance]:
        """Return our instances as it knows them, by id."""
        return await self._list("/miner/instances/", messages.InstanceItem, "instance_id")

    async def demand(self) -> Listing[Demand]:
        """Return the last hour's use, by app."""
        return await self._list("/miner/metrics/", messages.MetricsItem, "chute_id")

    async def capacity(self) -> Listing[Capacity]:
        """Return how many instances it wants, by app."""
        return await self._table("/chutes/utilization", messages.UtilizationItem, "chute_id")

    async def bounties(self) -> Listing[Bounty]:
        """Return the bounties that wait, by app."""
        return await self._table("/bounties/", messages.BountyItem, "chute_id")

    async def rolling_updates(self) -> Listing[RollingUpdate]:
        """Return the changes of version under way, by app."""
        return await self._table("/chutes/rolling_updates", messages.RollingUpdateItem, "chute_id")

    async def supported_gpus(self) -> Sequence[GpuModelRule]:
        """Return the GPU models that it takes; those that make no sense are left out."""
        found = await self._ask("GET", "/nodes/supported")
        if not isinstance(found, dict) or not found:
            raise self._nonsense("/nodes/supported")
        rules = []
        for short_ref, rule in found.items():
            try:
                rules.append(messages.SupportedGpu.model_validate(rule).offer(short_ref))
            except ValidationError:
                continue
        return rules

    async def chute(self, chute_id: str, version: str) -> OfferedChute:
        """Return one version of one app; NotFoundError where there is none."""
        path = f"/miner/chutes/{_part(chute_id)}/{_part(version)}"
        found = await self._ask("GET", path, purpose=signing.MINER)
        return self._read(messages.ChuteItem, found, path).offer()

    # -- what is done there

    async def register(
        self, gpus: Sequence[GpuFacts], *, server_id: str, server_name: str, host: str, port: int
    ) -> Registration:
        """Make GPUs of one node known."""
        body = registration_body(gpus, server_id=server_id, server_name=server_name, host=host, port=port)
        found = await self._ask("POST", "/nodes/", body=json.dumps(body).encode())
        reply = self._read(messages.RegistrationReply, found, "/nodes/")
        seed = reply.nodes[0].get("seed") if reply.nodes else None
        return Registration(reply.task_id, seed if isinstance(seed, int) else None)

    async def verification(self, registration: Registration) -> Verification:
        """Return how the verification of GPUs stands."""
        path = f"/nodes/verification_status?task_id={_part(registration.task_id)}"
        reply = self._read(
            messages.VerificationReply, await self._ask("GET", path, purpose=signing.GRAVAL), path
        )
        detail = reply.error or reply.detail or ""
        return Verification(reply.status, detail if isinstance(detail, str) else json.dumps(detail))

    async def forget_gpu(self, uuid: str) -> None:
        """Have it forget a GPU."""
        await self._forget(f"/nodes/{_part(uuid)}", signing.NODES)

    async def launch(self, chute_id: str, job_id: str | None = None) -> LaunchToken:
        """Return leave to start an instance of an app, or to run a job."""
        job = f"&job_id={_part(job_id)}" if job_id else ""
        path = f"/instances/launch_config?chute_id={_part(chute_id)}{job}"
        reply = self._read(messages.LaunchReply, await self._ask("GET", path, purpose=signing.LAUNCH), path)
        return LaunchToken(reply.config_id, reply.token)

    async def end_instance(self, chute_id: str, instance_id: str) -> None:
        """Have it forget an instance."""
        await self._forget(f"/instances/{_part(chute_id)}/{_part(instance_id)}", signing.INSTANCES)

    async def release_job(self, job_id: str) -> None:
        """Give a claimed job back."""
        await self._forget(f"/miner/jobs/{_part(job_id)}", signing.MINER)

    # -- the wire

    async def _forget(self, path: str, purpose: str) -> None:
        try:
            await self._ask("DELETE", path, purpose=purpose)
        except NotFoundError:
            return

    async def _list(self, path: str, message: type[Offering[T]], key: str) -> Listing[T]:
        name = path.strip("/").rpartition("/")[2]
        headers = signing.signed_headers(self._signer, self._now(), purpose=signing.MINER)
        patience = aiohttp.ClientTimeout(total=LIST_SECONDS, sock_connect=10.0, sock_read=QUIET_SECONDS)
        async with self._answer("GET", f"{path}?explicit_null=True", headers, None, patience) as response:
            stream = await read_list(name, response.content.iter_any())
        return replace(_listing(name, stream.items, message, key), silent=stream.silent)

    async def _table(self, path: str, message: type[Offering[T]], key: str) -> Listing[T]:
        found = await self._ask("GET", path)
        if not isinstance(found, list):
            raise self._nonsense(path)
        return _listing(path.strip("/").rpartition("/")[2], found, message, key)

    async def _ask(
        self, method: str, path: str, *, body: bytes | None = None, purpose: str | None = None
    ) -> object:
        headers = {"Content-Type": "application/json"}
        if body is not None or purpose is not None:
            headers |= signing.signed_headers(self._signer, self._now(), body=body, purpose=purpose)
        async with self._answer(method, path, headers, body) as response:
            text = await _bounded(response)
        try:
            found: object = json.loads(text)
        except ValueError as error:
            raise self._nonsense(path) from error
        return found

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        patience: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the client is used inside its context only")
        options: dict[str, Any] = {} if patience is None else {"timeout": patience}
        asked = self._now()
        try:
            async with self._session.request(
                method, self._api + path, headers=headers, data=body, allow_redirects=False, **options
            ) as response:
                if response.status >= 300:
                    raise refusal(
                        self._api, path, response.status, response.headers, await _bounded(response), asked
                    )
                yield response
        except TimeoutError as error:
            raise DeadlineError(f"The validator at {self._api} did not answer {path} in time.") from error
        except (aiohttp.ClientError, ValueError) as error:
            words = str(error) or type(error).__name__
            raise UnavailableError(
                f"The validator at {self._api} cannot be reached: {words}.",
                remedy="The pool asks again by itself. Check the address, and this machine's way to it.",
            ) from error

    def _read(self, message: type[M], found: object, path: str) -> M:
        try:
            return message.model_validate(found)
        except ValidationError as error:
            raise self._nonsense(path) from error

    def _nonsense(self, path: str) -> UnavailableError:
        return UnavailableError(
            f"What answers at {self._api}{path} does not speak as a validator does.",
            remedy="Check the address in the settings. Nothing was changed; the pool asks again by itself.",
        )


def _listing(name: str, found: Sequence[object], message: type[Offering[T]], key: str) -> Listing[T]:
    """Sort what was listed into what can be used and what cannot; an item without an id spoils the whole list."""
    items: dict[str, T] = {}
    unusable: dict[str, str] = {}
    for entry in found:
        own = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(own, str) or not own:
            raise BrokenListError(f"The validator's list of {name} holds an item without a {key}.")
        try:
            items[own] = message.model_validate(entry).offer()
        except ValidationError as error:
            first = error.errors()[0]
            unusable[own] = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return Listing(items, unusable)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """Return the body; UnavailableError where it is larger than anything that is due."""
    text = bytearray()
    async for chunk in response.content.iter_any():
        text += chunk
        if len(text) > MOST_ANSWER:
            raise UnavailableError(f"The validator's answer is larger than {MOST_ANSWER} bytes.")
    return bytes(text)


def _part(value: str) -> str:
    return quote(value, safe="")
