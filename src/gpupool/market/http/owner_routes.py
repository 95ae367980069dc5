"""What the market's owner does, with the operator token: publish, want, ask for jobs, report use, read the ledger."""

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpupool.market.http import listing
from gpupool.market.http.bodies import body_of
from gpupool.market.http.identity import Identity
from gpupool.market.http.inputs import ChuteInput, ImageInput, JobInput, TargetInput, UsesInput, parsed
from gpupool.market.jobs import ask
from gpupool.market.metering import Meter
from gpupool.market.publishing import publish, publish_image, remove_image, set_target, withdraw
from gpupool.market.refusing import RefusedError
from gpupool.market.state import Market


class OwnerRoutes:
    """The routes, over one market."""

    def __init__(self, market: Market, identity: Identity, meter: Meter) -> None:
        self._market, self._identity, self._meter = market, identity, meter

    def routes(self) -> list[Route]:
        """Return them."""
        return [
            Route("/market/images", self.publish_image, methods=["POST"]),
            Route("/market/images/{image}", self.remove_image, methods=["DELETE"]),
            Route("/market/chutes", self.chutes, methods=["GET"]),
            Route("/market/chutes", self.publish, methods=["POST"]),
            Route("/market/chutes/{chute}", self.withdraw, methods=["DELETE"]),
            Route("/market/chutes/{chute}/target", self.target, methods=["POST"]),
            Route("/market/jobs", self.jobs, methods=["GET"]),
            Route("/market/jobs", self.ask, methods=["POST"]),
            Route("/market/uses", self.uses, methods=["POST"]),
            Route("/market/ledger", self.ledger, methods=["GET"]),
        ]

    async def _owned(self, request: Request) -> bytes:
        self._identity.owner(request.headers)
        return await body_of(request)

    async def publish_image(self, request: Request) -> Response:
        """Make an image known."""
        given = parsed(ImageInput, await self._owned(request))
        image = await publish_image(self._market, given.user, given.name, given.tag)
        return JSONResponse(listing.image_item(image) | {"image": image.reference}, status_code=201)

    async def remove_image(self, request: Request) -> Response:
        """Let go of an image."""
        await self._owned(request)
        await remove_image(self._market, request.path_params["image"])
        return JSONResponse({"deleted": True})

    async def chutes(self, request: Request) -> Response:
        """Return the catalog with what is wanted of each chute."""
        self._identity.owner(request.headers)
        items = [
            listing.chute_item(self._market, chute)
            | {"target": chute.target, "instances": len(self._market.instances_of(chute.id))}
            for chute in self._market.chutes.values()
        ]
        return JSONResponse(items)

    async def publish(self, request: Request) -> Response:
        """Publish a chute, or change it."""
        chute = await publish(self._market, parsed(ChuteInput, await self._owned(request)).wish())
        return JSONResponse(listing.chute_item(self._market, chute), status_code=201)

    async def withdraw(self, request: Request) -> Response:
        """Take a chute out of the catalog."""
        await self._owned(request)
        await withdraw(self._market, request.path_params["chute"])
        return JSONResponse({"deleted": True})

    async def target(self, request: Request) -> Response:
        """Want another number of instances."""
        given = parsed(TargetInput, await self._owned(request))
        chute = await set_target(self._market, request.path_params["chute"], given.target)
        return JSONResponse({"chute_id": chute.id, "target": chute.target})

    async def jobs(self, request: Request) -> Response:
        """Return every job."""
        self._identity.owner(request.headers)
        return JSONResponse(
            [listing.job_item(job) | {"result": job.result} for job in self._market.jobs.values()]
        )

    async def ask(self, request: Request) -> Response:
        """Have a job run."""
        given = parsed(JobInput, await self._owned(request))
        job = await ask(
            self._market,
            given.chute_id,
            given.method,
            given.arguments,
            disk_gb=given.disk_gb,
            excluded=tuple(given.exclude),
        )
        return JSONResponse(listing.job_item(job), status_code=201)

    async def uses(self, request: Request) -> Response:
        """Take how instances were used."""
        given = parsed(UsesInput, await self._owned(request))
        await self._meter.note([entry.use() for entry in given.uses])
        return JSONResponse({"noted": len(given.uses)})

    async def ledger(self, request: Request) -> Response:
        """Return the ledger's lines of a time (``since``, ``until``: seconds since 1970)."""
        self._identity.owner(request.headers)
        try:
            since = float(request.query_params.get("since", "0"))
            until = float(request.query_params.get("until", "inf"))
        except ValueError as error:
            raise RefusedError(422, "since and until are seconds since 1970.") from error
        lines = await self._market.books.earnings(since, until)
        return JSONResponse([asdict(line) for line in lines])
