"""Hosts for tests of the recompute client: processes of their own, so that they can be killed and frozen.

They speak the wire contract and know the answers of `mainnet`; how they behave is said at their start. Run as a
program this file is such a host.
"""

import argparse
import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from aiohttp import web

import mainnet
from gpupool import __version__
from gpupool.contracts.problems import MEDIA_TYPE
from gpupool.contracts.recompute import QueueView, RecomputeServerView
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

    def await_question(self) -> None:
        """Return once it was asked for the first time."""
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == b"asked\n"

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()

    def count(self) -> dict[str, int]:
        """Return how many questions came in all, and how many at once."""
        with urllib.request.urlopen(f"http://{self.name}/count", timeout=30) as answer:
            told: dict[str, int] = json.load(answer)
        return told

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


class _Host:
    """What the process is while it runs."""

    def __init__(self, behaviour: argparse.Namespace) -> None:
        self._behaviour = behaviour
        self._asked = 0
        self._under_way = self._most = 0

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.post("/v1/{kind:proofs|qualities}", self._answer),
                web.get("/v1/server", self._show),
                web.get("/count", self._count),
            ]
        )
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        behaviour, body = self._behaviour, await request.json()
        self._asked += 1
        if self._asked == 1:
            print("asked", flush=True)
        self._under_way += 1
        self._most = max(self._most, self._under_way)
        try:
            await asyncio.sleep(behaviour.delay)
        finally:
            self._under_way -= 1
        if behaviour.refuses:
            status, code = REFUSALS[behaviour.refuses]
            problem = {"title": "No.", "status": status, "code": code, "detail": "Not here.", "remedy": "Go."}
            return web.Response(status=status, text=json.dumps(problem), content_type=MEDIA_TYPE)
        if not self._let_in(request):
            return web.Response(status=401)
        return web.json_response(_answer(request.match_info["kind"], body, lies=behaviour.lies))

    async def _count(self, request: web.Request) -> web.Response:
        return web.json_response({"asked": self._asked, "at_once": self._most})

    async def _show(self, request: web.Request) -> web.Response:
        if not self._let_in(request):
            return web.Response(status=401)
        behaviour = self._behaviour
        view = RecomputeServerView(
            instance_id="inst-test",
            version=behaviour.version,
            state="ready",
            k=[32],
            levels=[] if behaviour.kinds == "frames" else [1, 2, 3],
            devices=[],
            rates=[],
            queue=QueueView(running=0, waiting=0, room=1),
        )
        headers = {} if behaviour.kinds is None else {"X-Gpupool-Kinds": behaviour.kinds}
        if behaviour.date:
            moment = datetime.fromisoformat(behaviour.date).replace(tzinfo=UTC)
            headers["Date"] = format_datetime(moment, usegmt=True)
        return web.Response(text=view.model_dump_json(), content_type="application/json", headers=headers)

    def _let_in(self, request: web.Request) -> bool:
        token = self._behaviour.token
        return token is None or request.headers.get("Authorization") == f"Bearer {token}"


async def _serve(behaviour: argparse.Namespace) -> None:
    runner = web.AppRunner(_Host(behaviour).application())
    await runner.setup()
    tls = None
    if behaviour.certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(behaviour.certificate, behaviour.key)
    await web.TCPSite(runner, behaviour.address, behaviour.port, reuse_address=True, ssl_context=tls).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--lies", action="store_true")
    parser.add_argument("--refuses", choices=sorted(REFUSALS))
    for option in ("--token", "--kinds", "--date", "--certificate", "--key"):
        parser.add_argument(option)
    parser.add_argument("--version", default=__version__)
    asyncio.run(_serve(parser.parse_args()))
