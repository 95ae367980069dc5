"""Stand-ins for the closed GPU proof, so that a real validator runs without a GPU: a toy cipher on both sides.

    standin.py graval PORT            what the validator asks to encrypt and to check
    standin.py bootstrap PORT MINER   what it asks the miner's node

Everything around the mathematics is the validator's own: challenges, signatures, time windows.
"""

import asyncio
import base64
import hashlib
import json
import sys
import time
from typing import Any

from aiohttp import web

from gpupool.market.sealing import opened_whole, sealed_whole
from gpupool.validators.hotkeys import verified

SEED = 424_242
DEVICES = [
    {
        "uuid": f"{number:032x}",
        "name": "NVIDIA GeForce RTX 3090",
        "memory": 25_438_126_080,
        "processors": 82,
        "clock_rate": 1_695_000.0,
        "max_threads_per_processor": 1024,
    }
    for number in (20, 21)
]
PROOF_SECONDS = 45.0
"""Within the 3090's window of 0.55 to 1.7 times 70 s."""
WORK = {"intermediate_hashes": ["00" * 32] * 4, "num_matrices": 4, "total_iterations": 1}


def toy_key(seed: int, uuid: str, iterations: int) -> bytes:
    """Return the toy cipher's key, which both sides know."""
    return hashlib.sha256(f"{seed}|{uuid}|{iterations}".encode()).digest()[:16]


def challenge_answer(challenge: str) -> str:
    """Return the toy answer to a device-info challenge."""
    return hashlib.sha256(challenge.encode()).hexdigest()


async def encrypt(request: web.Request) -> web.Response:
    """Seal a text for a device."""
    asked: dict[str, Any] = await request.json()
    seed = asked.get("seed") or SEED
    key = toy_key(seed, asked["device_info"]["uuid"], asked["iterations"])
    return web.Response(text=f"{seed}|{sealed_whole(key, asked['payload'])}")


async def check_proof(_: web.Request) -> web.Response:
    """Take every proof."""
    return web.json_response({"result": True})


async def verify_device_challenge(request: web.Request) -> web.Response:
    """Tell whether an answer is the toy one."""
    asked: dict[str, Any] = await request.json()
    return web.json_response({"result": asked["response"] == challenge_answer(asked["challenge"])})


class Bootstrap:
    """The miner's node; takes the validator's signed words only."""

    def __init__(self, miner: str) -> None:
        self._miner = miner

    def _check(self, request: web.Request, subject: str) -> None:
        miner, validator, nonce, signature = (
            request.headers.get(f"X-Chutes-{name}", "")
            for name in ("Miner", "Validator", "Nonce", "Signature")
        )
        message = f"{miner}:{validator}:{nonce}:{subject}".encode()
        fresh = nonce.isdigit() and abs(time.time() - int(nonce)) < 30
        if miner != self._miner or not fresh or not verified(validator, message, bytes.fromhex(signature)):
            raise web.HTTPUnauthorized

    async def info(self, request: web.Request) -> web.Response:
        """Answer a device-info challenge."""
        self._check(request, "graval")
        return web.Response(text=challenge_answer(request.query["challenge"]))

    async def prove(self, request: web.Request) -> web.Response:
        """Take as long as the card would, then open what was sealed for it."""
        body = await request.read()
        self._check(request, hashlib.sha256(body).hexdigest())
        asked: dict[str, Any] = json.loads(body)
        await asyncio.sleep(PROOF_SECONDS)
        seed, iterations = asked["seed"], asked["iterations"]
        proof = {
            device["uuid"]: {
                "device_id": number,
                "device_uuid": device["uuid"],
                "device_name": device["name"],
                "work_product": WORK,
            }
            for number, device in enumerate(DEVICES)
        }
        plain = {
            uuid: opened_whole(
                toy_key(seed, uuid, iterations), base64.b64encode(base64.b64decode(text)).decode()
            )
            for uuid, text in asked["ciphertext"].items()
        }
        return web.json_response({"devices": DEVICES, "seed": seed, "proof": proof, "plaintext": plain})


def main(role: str, port: str, *more: str) -> None:
    """Serve one of the two on loopback."""
    app = web.Application()
    if role == "graval":
        app.router.add_post("/encrypt", encrypt)
        app.router.add_post("/check_proof", check_proof)
        app.router.add_post("/verify_device_challenge", verify_device_challenge)
    else:
        bootstrap = Bootstrap(*more)
        app.router.add_get("/info", bootstrap.info)
        app.router.add_post("/prove", bootstrap.prove)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None, handle_signals=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
