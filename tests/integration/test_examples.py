"""The files in `examples/` deploy for real on a machine without a GPU, and do what they say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from up_run import UpRun, free_ports, until, up_run


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpRun]:
    """A pool without the demo."""
    with up_run(tmp_path_factory.mktemp("examples") / "home") as run:
        run.start("--no-demo")
        yield run
        run.interrupt()
        assert run.wait() == 0


def deploy(pool: UpRun, text: str) -> Any:
    """Deploy a spec, wait until it is active, and return its newest deployment."""
    done = pool.cli("chute", "deploy", "-", "--json", stdin=text)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["placements"][0]


def test_hello_http_answers_at_its_address(pool: UpRun, checkout: Path) -> None:
    placement = deploy(pool, (checkout / "examples" / "hello-http.yaml").read_text())
    assert "Directory listing" in httpx.get(f"http://{placement['address']}/", trust_env=False).text


def test_the_chat_is_reached_by_its_model_name(pool: UpRun, checkout: Path) -> None:
    deploy(pool, (checkout / "examples" / "smollm2-chat.yaml").read_text())
    gateway = f"http://127.0.0.1:{pool.ports[1]}/v1"
    with httpx.Client(trust_env=False, timeout=60) as client:
        until(lambda: "smollm2-chat" in client.get(f"{gateway}/models").text, 30, "a route to the model")
        question = {"model": "smollm2-chat", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        reply = client.post(f"{gateway}/chat/completions", json=question).json()
    assert reply["model"] == "smollm2-chat"
    assert reply["choices"][0]["message"]["content"]
    assert 1 <= reply["usage"]["completion_tokens"] <= 4


def test_the_recompute_server_recovers_a_proof(pool: UpRun, checkout: Path) -> None:
    """On another port than the file's, which this machine may use for something else."""
    (port,) = free_ports(1)
    text = (checkout / "examples" / "recompute-server.yaml").read_text()
    assert "port: 11990\n" in text
    deploy(pool, text.replace("port: 11990\n", f"port: {port}\n"))
    checked = pool.cli("recompute", "check", f"http://127.0.0.1:{port}", "--level", "1", "--seconds", "60")
    assert checked.returncode == 0, checked.stderr
    assert "all 64 x recovered from C1" in checked.stdout
