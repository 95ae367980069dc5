"""`chutes-miner-cli` itself, run against a control, and the requests it sends, as it was seen to send them.

`RECORDED` was written by running the real client with a well-known development key against `Recorder`
(`.venv/bin/python -P tests/chutes_cli.py`). Its signatures are real, so a control whose clock stands at their time must
take them.
"""

import json
import subprocess
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import peer_env

RECORDED = Path(__file__).resolve().parent / "data" / "chutes_cli_requests.json"
SEED = "0xe5be9a5092b81bca64be81d212e7f2f9eba183bb7a90954f7b76361f6edb5c0a"
"""The development key that every substrate tool knows; its holder is everybody."""
ADDRESS = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
COMMANDS = {
    "add-node": (
        *("--name", "tested", "--validator", ADDRESS),
        *("--hourly-cost", "1.25", "--gpu-short-ref", "l4"),
    ),
    "local-inventory": ("--raw-json",),
    "lock": ("--name", "tested"),
    "unlock": ("--name", "tested"),
    "purge-deployments": (),
    "purge-deployment": ("--deployment-id", "DEPLOYMENT"),
    "purge-deployment of a node": ("--node-id", "tested"),
    "delete-node": ("--name", "tested"),
}
"""Every command that talks to the miner API, in an order in which each finds what it needs."""


@dataclass(frozen=True)
class Sent:
    """A request of the client."""

    command: str
    method: str
    path: str
    headers: dict[str, str]
    body: str

    @property
    def at(self) -> int:
        """When it was signed, in Unix seconds."""
        return int(self.headers["X-Chutes-Nonce"])

    @property
    def shape(self) -> tuple[object, ...]:
        """What stays the same each time it is sent."""
        changing = {"X-Chutes-Nonce", "X-Chutes-Signature", "Host"}
        kept = {name: value for name, value in self.headers.items() if name not in changing}
        return self.command, self.method, self.path, kept, sorted(self.headers), self.body


def recorded() -> list[Sent]:
    """Return what the real client was seen to send."""
    return [Sent(**one) for one in json.loads(RECORDED.read_text())]


def hotkey_file(folder: Path) -> Path:
    """Write the development key as bittensor keeps one, and return the file."""
    path = folder / "hotkey.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps({"ss58Address": ADDRESS, "secretSeed": SEED}))
    return path


def run(url: str, hotkey: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one command of the real client to its end."""
    program = peer_env.environment("chutes") / "bin" / "chutes-miner"
    return subprocess.run(
        [program, command.split(maxsplit=1)[0], *words, "--hotkey", hotkey, "--miner-api", url],
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Recorder:
    """A server that writes down what it is asked, and answers what the client can bear. Use as a context manager."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.command = ""
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.startswith(("X-", "Content-Type"))
                }
                recorder.sent.append(Sent(recorder.command, self.command, self.path, headers, body))
                answer = (
                    json.dumps({"name": "tested", "locked": True}).encode() if self.command != "POST" else b""
                )
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the base class calls these names

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def record(self, hotkey: Path) -> list[Sent]:
        """Run every command and return what came."""
        for self.command, words in COMMANDS.items():
            told = run(self.url, hotkey, self.command, *words)
            assert told.returncode == 0, told.stderr
        return self.sent


if __name__ == "__main__":
    import tempfile
    from dataclasses import asdict

    with tempfile.TemporaryDirectory() as scratch, Recorder() as recorder:
        found = recorder.record(hotkey_file(Path(scratch)))
    RECORDED.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
