"""One question to one worker: an HTTP request over a connection of its own, and what its answer means for the worker."""

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from gpupool.balancing import Outcome
from gpupool.contracts.recompute import (
    BINARY_TYPE,
    DEADLINE_HEADER,
    REQUEST_ID_HEADER,
    SOLUTIONS_PATH,
    SolutionRequest,
)
from gpupool.core.errors import EnvironmentProblemError
from gpupool.recompute.proxy.connecting import NoConnectionError, open_stream
from gpupool.recompute.proxy.nodes import Node
from gpupool.recompute.proxy.trust import Keyring
from gpupool.solvers.questions import SolveQuestion

CONNECT_SECONDS: Final = 2.0
_HEAD_LIMIT: Final = 16 * 1024
_BODY_LIMIT: Final = 16 * 1024
_BUSY: Final = {429, 504}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with what it is asked with."""

    question: SolveQuestion
    release: str
    """Of chia_rs, as the farmer has it."""
    number: str
    """Names it in logs, ours and the worker's."""


class AttemptError(Exception):
    """A worker gave no answer."""

    def __init__(self, outcome: Outcome, why: str, *, unsolved: bool = False) -> None:
        super().__init__(why)
        self.outcome, self.why = outcome, why
        self.unsolved = unsolved
        """It tried, and says that there is no proof."""


async def ask_worker(node: Node, keyring: Keyring, asked: Asked, seconds: float) -> bytes:
    """Return the proof that a worker finds within ``seconds``; cancelling this ends its work. Raises AttemptError."""
    try:
        async with asyncio.timeout(seconds):
            return await _exchange(node, keyring, _request(node, keyring, asked, seconds))
    except TimeoutError as error:
        raise AttemptError(Outcome.TIMED_OUT, f"it said nothing for {seconds:.1f} s") from error


def _request(node: Node, keyring: Keyring, asked: Asked, seconds: float) -> bytes:
    question = asked.question
    body = SolutionRequest(
        partial_proof=question.partial_proof.hex(),
        plot_id=question.plot_id.hex(),
        k=question.k,
        strength=question.strength,
        chia_rs=asked.release,
    ).model_dump_json()
    try:
        token = keyring.authorization(node.trust)
    except EnvironmentProblemError as error:
        raise AttemptError(Outcome.FAILED, error.message) from error
    lines = (
        f"POST {SOLUTIONS_PATH} HTTP/1.1",
        "Host: gpupool",
        f"Accept: {BINARY_TYPE}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"{DEADLINE_HEADER}: {max(1, int(seconds * 1000))}",
        f"{REQUEST_ID_HEADER}: {asked.number}",
        "Connection: close",
    )
    return "".join(f"{line}\r\n" for line in lines).encode() + token + b"\r\n" + body.encode()


async def _exchange(node: Node, keyring: Keyring, request: bytes) -> bytes:
    try:
        reader, writer = await open_stream(node, keyring, CONNECT_SECONDS, _HEAD_LIMIT)
    except NoConnectionError as error:
        raise AttemptError(Outcome.FAILED, error.why) from error
    except EnvironmentProblemError as error:
        raise AttemptError(Outcome.FAILED, error.message) from error
    try:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, length = _read_head(head)
        body = await reader.readexactly(length)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise AttemptError(Outcome.FAILED, "it closed the connection without an answer") from error
    finally:
        writer.transport.abort()
    if status != 200:
        raise _refusal(status, body)
    return body


def _read_head(head: str) -> tuple[int, int]:
    """Return status and length of the body."""
    first, *lines = head.split("\r\n")
    words = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    length = headers.get("content-length", "")
    if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():
        raise AttemptError(Outcome.FAILED, "it answered with what is no HTTP")
    if not (length.isdecimal() and len(length) < 9 and int(length) <= _BODY_LIMIT):
        raise AttemptError(
            Outcome.FAILED, f"it answered {words[1]} with a body of unknown or excessive length"
        )
    return int(words[1][:3]), int(length)


def _refusal(status: int, body: bytes) -> AttemptError:
    try:
        problem = json.loads(body)
        code, detail = str(problem["code"]), str(problem["detail"])[:300]
    except (ValueError, TypeError, KeyError, RecursionError):
        return AttemptError(Outcome.FAILED, f"it answered {status}")
    if code == "unsolved":
        return AttemptError(Outcome.OK, detail, unsolved=True)
    # What a busy worker refuses tells nothing against it.
    outcome = Outcome.CANCELLED if status in _BUSY else Outcome.FAILED
    return AttemptError(outcome, f"it answered {status} ({code}): {detail}")
