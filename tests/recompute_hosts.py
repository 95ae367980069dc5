"""Hosts for tests of the recompute client: processes of their own, so that they can be killed and frozen.

They speak the wire contract and know the answers of `mainnet`; how they behave is said at their start. Run as a
program this file is such a host.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

import mainnet
from gpupool.contracts.problems import MEDIA_TYPE
from gpupool.pos.quality import proof_pair

HERE = Path(__file__).resolve()
REFUSALS = {
    "no_proof": (404, "no_proof"),
    "busy": (429, "busy"),
    "draining": (503, "draining"),
    "unsupported": (422, "unsupported"),
    "locked": (401, "unauthorized"),
    "malformed": (400, "invalid_input"),
}


@dataclass
class HostProcess:
    """One host; its port stays the same over restarts."""

    port: int
    arguments: tuple[str, ...]
    child: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.launch()

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and return once it listens."""
        self.launch()
        self.await_port()

    def launch(self) -> None:
        command = [sys.executable, str(HERE), str(self.port), *self.arguments]
        paths = os.pathsep.join(str(folder) for folder in (HERE.parent, HERE.parent.parent / "src"))
        self.child = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE)

    def await_port(self) -> None:
        """Return once it listens."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, "the host did not start"
        self.port = int(line)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()

    def freeze(self) -> None:
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.child.send_signal(signal.SIGCONT)


@contextmanager
def hosts(*behaviours: str) -> Iterator[list[HostProcess]]:
    """Run one host for each behaviour (its arguments, such as ``--delay 0.1``) as long as the block lasts."""
    started: list[HostProcess] = []
    try:
        started.extend(HostProcess(0, tuple(behaviour.split())) for behaviour in behaviours)
        for host in started:
            host.await_port()
        yield started
    finally:
        for host in started:
            host.kill()


def _answer(kind: str, request: dict[str, str], *, lies: bool) -> dict[str, object]:
    asked = (bytes.fromhex(request["plot_id"]), bytes.fromhex(request["challenge"]))
    proof = next(p for p in mainnet.K32 if (p.plot_id, p.challenge) == asked)
    numbers = list(proof.xs) if kind == "proofs" else list(proof_pair(proof.xs, proof.challenge))
    if lies:
        numbers[0] ^= 1
    found = [f"{x:x}" for x in numbers]
    return {"proof": found, "checked": "challenge"} if kind == "proofs" else {"x": found}


def _application(behaviour: argparse.Namespace) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(behaviour.delay)
        if behaviour.refuses:
            status, code = REFUSALS[behaviour.refuses]
            problem = {"title": "No.", "status": status, "code": code, "detail": "Not here.", "remedy": "Go."}
            return web.Response(status=status, text=json.dumps(problem), content_type=MEDIA_TYPE)
        if behaviour.token and request.headers.get("Authorization") != f"Bearer {behaviour.token}":
            return web.Response(status=401)
        return web.json_response(_answer(request.match_info["kind"], body, lies=behaviour.lies))

    app = web.Application()
    app.add_routes([web.post("/v1/{kind:proofs|qualities}", answer)])
    return app


async def _serve(behaviour: argparse.Namespace) -> None:
    runner = web.AppRunner(_application(behaviour))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", behaviour.port, reuse_address=True).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--lies", action="store_true")
    parser.add_argument("--refuses", choices=sorted(REFUSALS))
    parser.add_argument("--token")
    asyncio.run(_serve(parser.parse_args()))
