"""The demo's engine for real: its own process, a real model, OpenAI's wire form. Form is asserted, never words."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

QUESTION: dict[str, Any] = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "What is gravity?"}],
    "temperature": 0,
    "max_tokens": 16,
}


@dataclass
class Engine:
    """A started launcher."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    log: Path

    def wait_healthy(self) -> None:
        """Return when ``/health`` answers 200; fail with the log when the process ends or 60 s pass."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                continue
        pytest.fail(f"the engine never became healthy:\n{self.log.read_text()}")


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(port: int, log: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gpupool.engines.llamacpp", "--port", str(port), *options]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def start(port: int, folder: Path) -> Engine:
    log = folder / "engine.log"
    process = launch(port, log, "--model", "smollm2", "--alias", "smollm2-135m", "--threads", "1")
    # llama.cpp closes a connection after a stream without saying so; a reused one would be a coin toss.
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}",
        timeout=60,
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
    )
    return Engine(process, client, log)


def end(engine: Engine) -> None:
    engine.client.close()
    engine.process.kill()
    engine.process.wait(30)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One healthy engine for the tests that only ask it."""
    started = start(unused_port(), tmp_path_factory.mktemp("engine"))
    try:
        started.wait_healthy()
        yield started
    finally:
        end(started)


def events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]


def test_it_names_its_model_by_the_alias(engine: Engine) -> None:
    listed = engine.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["smollm2-135m"]


def test_an_answer_has_text_a_finish_reason_and_usage(engine: Engine) -> None:
    answer = engine.client.post("/v1/chat/completions", json=QUESTION).raise_for_status().json()
    [choice] = answer["choices"]
    assert choice["message"]["content"].strip()
    assert choice["finish_reason"] in {"stop", "length"}
    assert answer["model"] == "smollm2-135m"
    assert 0 < answer["usage"]["completion_tokens"] <= 16
    assert answer["usage"]["prompt_tokens"] > 0


def test_temperature_zero_repeats_itself(engine: Engine) -> None:
    texts = {
        engine.client.post("/v1/chat/completions", json=QUESTION).json()["choices"][0]["message"]["content"]
        for _ in range(2)
    }
    assert len(texts) == 1


def test_a_stream_ends_with_usage_and_done(engine: Engine) -> None:
    request = QUESTION | {"stream": True, "stream_options": {"include_usage": True}}
    response = engine.client.post("/v1/chat/completions", json=request)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response)
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    deltas = [choice["delta"].get("content") or "" for chunk in parsed for choice in chunk["choices"]]
    assert len([delta for delta in deltas if delta]) > 1
    assert parsed[-1]["usage"]["completion_tokens"] > 0
    reasons = [choice["finish_reason"] for chunk in parsed for choice in chunk["choices"]]
    assert reasons[-1] in {"stop", "length"}


def test_a_page_of_another_origin_is_not_let_in(engine: Engine) -> None:
    answer = engine.client.get("/v1/models", headers={"Origin": "http://elsewhere.example"})
    assert answer.headers.get("access-control-allow-origin") in {None, ""}


def test_it_says_that_it_computes_on_the_cpu(engine: Engine) -> None:
    assert "CPU only" in engine.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_it_with_status_0_in_the_middle_of_an_answer(
    number: signal.Signals, tmp_path: Path, free_port: int
) -> None:
    engine = start(free_port, tmp_path)
    try:
        engine.wait_healthy()
        request = QUESTION | {"stream": True, "max_tokens": 1500, "ignore_eos": True}
        with engine.client.stream("POST", "/v1/chat/completions", json=request) as response:
            next(response.iter_lines())
            engine.process.send_signal(number)
            assert engine.process.wait(20) == 0
    finally:
        end(engine)


def test_a_taken_port_is_named_before_anything_is_loaded(engine: Engine, tmp_path: Path) -> None:
    port = engine.client.base_url.port
    assert port is not None
    log = tmp_path / "second.log"
    second = launch(port, log, "--model", "smollm2")
    assert second.wait(60) == 3
    assert f"Port {port} on 127.0.0.1 is taken" in log.read_text()


def test_a_damaged_model_is_refused_in_words(tmp_path: Path, free_port: int) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(64))
    log = tmp_path / "engine.log"
    process = launch(free_port, log, "--model", str(damaged))
    assert process.wait(60) == 3
    assert "What to do" in log.read_text()
