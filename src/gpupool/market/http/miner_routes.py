"""What miners ask, signed with their hotkey, and what everybody may know."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gpupool.market.bounties import bounty_list
from gpupool.market.http import listing
from gpupool.market.http.bodies import body_of
from gpupool.market.http.identity import Identity
from gpupool.market.http.inputs import ServerInput, parsed
from gpupool.market.instances import end, forget_gpu
from gpupool.market.jobs import release
from gpupool.market.launching import Issuer, issue
from gpupool.market.metering import Meter
from gpupool.market.records import GpuState
from gpupool.market.refusing import RefusedError
from gpupool.market.registering import (
    Verifier,
    gpus_of,
    register,
    settle_verification,
    verification_of,
)
from gpupool.market.state import Market
from gpupool.validators.chutes import signing

_LOG: Final = structlog.get_logger(__name__)


class MinerRoutes:
    """The routes, over one market."""

    def __init__(
        self, market: Market, identity: Identity, issuer: Issuer, meter: Meter, verifier: Verifier
    ) -> None:
        self._market, self._identity, self._issuer = market, identity, issuer
        self._meter, self._verifier = meter, verifier
        self._verifications: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        """Return them."""
        return [
            Route("/nodes/supported", self.supported),
            Route("/nodes/verification_status", self.verification),
            Route("/nodes/", self.register, methods=["POST"]),
            Route("/nodes/{gpu}", self.forget_gpu, methods=["DELETE"]),
            Route("/miner/chutes/{chute}/{version}", self.chute),
            Route("/miner/inventory", self.inventory),
            Route("/miner/jobs/{job}", self.release, methods=["DELETE"]),
            Route("/miner/{kind}/", self.list),
            Route("/chutes/utilization", self.utilization),
            Route("/chutes/rolling_updates", self.rolling_updates),
            Route("/bounties/", self.bounties),
            Route("/instances/launch_config", self.launch),
            Route("/instances/{chute}/{instance}", self.end, methods=["DELETE"]),
        ]

    # -- for everybody

    async def supported(self, _: Request) -> Response:
        """Return the GPU models that are taken."""
        return JSONResponse(
            {
                model.short_ref: {
                    "model_name_check": model.pattern,
                    "memory": model.memory_gb,
                    "processors": model.processors,
                    "clock_rate": {"base": model.base_mhz, "boost": model.boost_mhz},
                    "max_threads_per_processor": model.max_threads_per_processor,
                    "hourly_rate": model.hourly_usd,
                    "graval": {
                        "iterations": model.proof_iterations,
                        "estimate": model.proof_estimate_seconds,
                    },
                }
                for model in self._market.catalog
                if model.enabled
            }
        )

    async def utilization(self, _: Request) -> Response:
        """Return how many instances each chute has and wants."""
        return JSONResponse(self._meter.utilization())

    async def rolling_updates(self, _: Request) -> Response:
        """Return the changes of version under way: every chute of which old instances are left."""
        items = []
        for chute in self._market.chutes.values():
            old = [one for one in self._market.instances_of(chute.id) if one.version != chute.version]
            if old:
                permitted: dict[str, int] = {}
                for instance in old:
                    permitted[instance.hotkey] = permitted.get(instance.hotkey, 0) + 1
                items.append(
                    {
                        "chute_id": chute.id,
                        "old_version": old[0].version,
                        "new_version": chute.version,
                        "started_at": listing.moment(chute.updated_at),
                        "permitted": permitted,
                    }
                )
        return JSONResponse(items)

    async def bounties(self, _: Request) -> Response:
        """Return the bounties that wait."""
        return JSONResponse(bounty_list(self._market))

    # -- lists

    async def list(self, request: Request) -> Response:
        """Return a list as a stream of lines."""
        hotkey = self._identity.miner(request.headers, purpose=signing.MINER)
        items = list(self._items(request.path_params["kind"], hotkey))
        asked = request.query_params.get("explicit_null", "").casefold() in {"true", "1"}
        lines = listing.lines_of(items, explicit_null=asked)
        return StreamingResponse(lines, media_type="text/event-stream")

    def _items(self, kind: str, hotkey: str) -> Iterable[dict[str, Any]]:
        market = self._market
        if kind == "chutes":
            return listing.chute_items(market)
        if kind == "images":
            return map(listing.image_item, market.images.values())
        if kind == "nodes":
            return (listing.gpu_item(gpu) for gpu in market.gpus.values() if gpu.hotkey == hotkey)
        if kind == "instances":
            own = (instance for instance in market.instances.values() if instance.hotkey == hotkey)
            return map(listing.instance_item, own)
        if kind == "jobs":
            return (listing.job_item(job) for job in market.jobs.values() if job.hotkey == hotkey)
        if kind == "metrics":
            return self._meter.metrics()
        raise RefusedError(404, "Not Found")

    async def chute(self, request: Request) -> Response:
        """Return one chute, if that is its version."""
        self._identity.miner(request.headers, purpose=signing.MINER)
        chute = self._market.chutes.get(request.path_params["chute"])
        if chute is None or chute.version != request.path_params["version"]:
            raise RefusedError(404, "There is no such version of such a chute.")
        return JSONResponse(listing.chute_item(self._market, chute))

    async def inventory(self, request: Request) -> Response:
        """Return what runs on each of the miner's GPUs."""
        hotkey = self._identity.miner(request.headers, purpose=signing.MINER)
        return JSONResponse(listing.inventory(self._market, hotkey))

    # -- GPUs

    async def register(self, request: Request) -> Response:
        """Take a server's GPUs, and begin to verify them."""
        body = await body_of(request)
        hotkey = self._identity.miner(request.headers, body=body)
        server = parsed(ServerInput, body)
        claims = [node.claim() for node in server.nodes]
        task_id, gpus = await register(self._market, hotkey, server.server_id, server.server_name, claims)
        self.begin_verification(task_id)
        return JSONResponse(
            {"nodes": [listing.gpu_item(gpu) for gpu in gpus], "task_id": task_id}, status_code=202
        )

    def begin_verification(self, task_id: str) -> None:
        """Verify a server's GPUs beside everything else."""
        task = asyncio.get_running_loop().create_task(self._verify(task_id))
        self._verifications.add(task)
        task.add_done_callback(self._verifications.discard)

    def begin_pending(self) -> None:
        """Verify what was left unverified when the market stopped."""
        pending = {gpu.task_id for gpu in self._market.gpus.values() if gpu.state is GpuState.PENDING}
        for task_id in sorted(pending):
            self.begin_verification(task_id)

    async def _verify(self, task_id: str) -> None:
        gpus = gpus_of(self._market, task_id)
        if gpus:
            fault = await self._verifier.verify(gpus)
            await settle_verification(self._market, task_id, fault)
            _LOG.info("gpus.verified" if fault is None else "gpus.refused", task=task_id, fault=fault)

    async def verification(self, request: Request) -> Response:
        """Return how a verification stands."""
        hotkey = self._identity.miner(request.headers, purpose=signing.GRAVAL)
        task_id = request.query_params.get("task_id", "")
        return JSONResponse(verification_of(self._market, hotkey, task_id))

    async def forget_gpu(self, request: Request) -> Response:
        """Let go of a GPU."""
        hotkey = self._identity.miner(request.headers, purpose=signing.NODES)
        gpu_id = request.path_params["gpu"]
        await forget_gpu(self._market, hotkey, gpu_id)
        return JSONResponse({"node_id": gpu_id, "deleted": True})

    # -- instances and jobs

    async def launch(self, request: Request) -> Response:
        """Give leave to start an instance or to run a job."""
        hotkey = self._identity.miner(request.headers, purpose=signing.LAUNCH)
        job_id = request.query_params.get("job_id") or None
        launch = await issue(self._market, hotkey, request.query_params.get("chute_id", ""), job_id)
        return JSONResponse({"token": self._issuer.token(launch), "config_id": launch.id})

    async def end(self, request: Request) -> Response:
        """Let go of an instance."""
        hotkey = self._identity.miner(request.headers, purpose=signing.INSTANCES)
        instance_id = request.path_params["instance"]
        await end(self._market, hotkey, request.path_params["chute"], instance_id)
        return JSONResponse({"instance_id": instance_id, "deleted": True})

    async def release(self, request: Request) -> Response:
        """Take a job back."""
        hotkey = self._identity.miner(request.headers, purpose=signing.MINER)
        job_id = request.path_params["job"]
        await release(self._market, hotkey, job_id)
        return JSONResponse({"job_id": job_id, "released": True})
