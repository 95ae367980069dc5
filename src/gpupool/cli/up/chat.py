"""The first proof that the pool works: a chat completion through the gateway, streamed as it comes."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx

from gpupool.core.errors import UnavailableError

QUESTION: Final = "What is gravity?"
_MAX_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResult:
    """What came back."""

    model: str
    question: str
    answer: str
    finish_reason: str
    completion_tokens: int
    first_token_seconds: float
    seconds: float


def ask(gateway: str, model: str, show: Callable[[str], None]) -> ChatResult:
    """Stream one completion from ``gateway`` (an URL), handing each piece to ``show``.

    Raises UnavailableError when the answer is an error, breaks off or is empty.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begun = time.monotonic()
    pieces: list[str] = []
    first, finish, tokens = 0.0, "", 0
    for chunk in _chunks(f"{gateway}/v1/chat/completions", body):
        tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        for choice in chunk.get("choices", []):
            text = choice.get("delta", {}).get("content") or ""
            if text:
                first = first or time.monotonic() - begun
                pieces.append(text)
                show(text)
            finish = choice.get("finish_reason") or finish
    if not pieces or not finish:
        raise UnavailableError(
            "The chat completion came back empty or broke off.", remedy="See `gpupool chute logs`."
        )
    return ChatResult(
        model=model,
        question=QUESTION,
        answer="".join(pieces),
        finish_reason=finish,
        completion_tokens=tokens,
        first_token_seconds=first,
        seconds=time.monotonic() - begun,
    )


def _chunks(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        with (
            httpx.Client(trust_env=False, timeout=60.0) as client,
            client.stream("POST", url, json=body) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                text = answer.read().decode(errors="replace")[:500]
                raise UnavailableError(f"The gateway answered {answer.status_code}: {text}")
            for line in answer.iter_lines():
                if line.startswith("data:") and line[5:].strip() != "[DONE]":
                    yield _parsed(line[5:])
    except httpx.HTTPError as error:
        raise UnavailableError(f"The gateway at {url} broke off ({type(error).__name__}).") from error


def _parsed(text: str) -> dict[str, Any]:
    chunk = json.loads(text)
    if "error" in chunk:
        raise UnavailableError(
            f"The stream carried an error: {chunk['error'].get('message', chunk['error'])}"
        )
    return dict(chunk)
