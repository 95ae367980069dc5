"""What an instance says for itself, with its launch token: its claim, its proof, that it serves, how its job went."""

import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpupool.market.http.bodies import body_of
from gpupool.market.http.identity import launch_token
from gpupool.market.http.inputs import ClaimInput, ProofInput, parsed
from gpupool.market.http.listing import moment
from gpupool.market.instances import LaunchProof, activate, claim, expected_words, verify
from gpupool.market.jobs import report
from gpupool.market.launching import Issuer
from gpupool.market.records import Instance
from gpupool.market.refusing import RefusedError
from gpupool.market.state import Market


class InstanceRoutes:
    """The routes, over one market."""

    def __init__(
        self, market: Market, issuer: Issuer, proof: LaunchProof, url: str, make_key: Callable[[], str]
    ) -> None:
        """``url``: where instances reach the market; ``make_key`` returns 32 fresh hexadecimal digits."""
        self._market, self._issuer, self._proof = market, issuer, proof
        self._url, self._make_key = url.rstrip("/"), make_key

    def routes(self) -> list[Route]:
        """Return them."""
        return [
            Route("/instances/launch_config/{launch}", self.claim, methods=["POST"]),
            Route("/instances/launch_config/{launch}", self.verify, methods=["PUT"]),
            Route("/instances/activate/{instance}", self.activate),
            Route("/jobs/{job}", self.report, methods=["POST"]),
        ]

    async def claim(self, request: Request) -> Response:
        """Take its GPUs, host and ports; return what it must prove."""
        token = self._token(request)
        said = parsed(ClaimInput, await body_of(request)).model_dump(mode="json")
        launch, challenge = await claim(
            self._market, self._issuer, self._proof, token, said, self._make_key()
        )
        return JSONResponse(
            {
                "seed": challenge.seed,
                "iterations": challenge.iterations,
                "job_id": launch.job_id,
                "symmetric_key": {
                    "ciphertext": challenge.ciphertext,
                    "uuid": challenge.uuid,
                    "response_plaintext": expected_words(launch),
                },
            }
        )

    async def verify(self, request: Request) -> Response:
        """Take its proof; return what it may do now."""
        token = self._token(request)
        answer = parsed(ProofInput, await body_of(request)).model_dump()
        instance = await verify(self._market, self._issuer, self._proof, token, answer)
        return JSONResponse(self._granted(instance, token))

    def _granted(self, instance: Instance, token: str) -> dict[str, Any]:
        granted: dict[str, Any] = {
            "chute_id": instance.chute_id,
            "instance_id": instance.id,
            "verified_at": moment(instance.verified_at),
            "activation_url": f"{self._url}/instances/activate/{instance.id}",
        }
        job = self._market.jobs.get(instance.job_id or "")
        if job is not None:
            granted |= {
                "job_id": job.id,
                "job_method": job.method,
                "job_data": job.arguments,
                "job_status_url": f"{self._url}/jobs/{job.id}?token={token}",
            }
        return granted

    async def activate(self, request: Request) -> Response:
        """Let it serve."""
        token = launch_token(request.headers)
        await activate(self._market, request.path_params["instance"], token, self._issuer)
        return JSONResponse({"ok": True})

    async def report(self, request: Request) -> Response:
        """Take how its job ended."""
        token = request.query_params.get("token") or launch_token(request.headers)
        try:
            result = json.loads(await body_of(request))
        except ValueError:
            result = None
        if not isinstance(result, dict):
            raise RefusedError(422, "A job's result is a JSON object.")
        job = await report(self._market, self._issuer, token, request.path_params["job"], result)
        return JSONResponse({"job_id": job.id, "status": job.state.value})

    def _token(self, request: Request) -> str:
        token = launch_token(request.headers)
        if self._issuer.launch_id(token, self._market.now) != request.path_params["launch"]:
            raise RefusedError(401, "The token is of another launch.")
        return token
