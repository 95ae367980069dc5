"""What the server and its worker processes say to each other: small JSON messages over a pair of pipes.

Only a worker computes. Whatever a driver or a compiled kernel does to its process, the one that holds the port, the
queue and the connections does not share an address with it. Nothing here is read from a network.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final

from gpupool.core.errors import GpupoolError
from gpupool.recompute.server.questions import AnyQuestion, Asking, Question
from gpupool.solvers.questions import SolveQuestion

HEADER: Final = 4
"""Bytes of the length (little-endian) in front of each message."""
LONGEST: Final = 64 * 1024
"""A question has about 1,000 bytes, an answer 800."""


class BrokenMessageError(GpupoolError):
    """The other side sent something that is no message."""

    code = "broken_message"


@dataclass(frozen=True, slots=True)
class Ask:
    """Work on a question for at most ``seconds``."""

    number: int
    kind: Asking
    question: AnyQuestion
    seconds: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop working on a question at its next checkpoint: nobody waits for the answer."""

    number: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Tell how far everything has come."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has compiled and tested itself."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """The worker cannot be used, and says why before it ends."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Done:
    """The verified answer to a question, and how long it was computed."""

    number: int
    xs: tuple[int, ...]
    """Of a solution, the bytes of the proof."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A question ended without an answer."""

    number: int
    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Pong:
    """Checkpoints passed, by the number of each question that is worked on."""

    steps: dict[int, int]


Message = Ask | Cancel | Ping | Ready | Unfit | Done | Failed | Pong
_KINDS: Final[Mapping[str, type[Message]]] = {
    kind.__name__: kind for kind in (Ask, Cancel, Ping, Ready, Unfit, Done, Failed, Pong)
}


def encode(message: Message) -> bytes:
    """Return a message with its length in front."""
    fields = asdict(message)
    if isinstance(message, Ask):
        fields["question"] = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in fields["question"].items()
        }
    body = json.dumps([type(message).__name__, fields]).encode()
    return len(body).to_bytes(HEADER, "little") + body


def receive(stream: BinaryIO) -> Message | None:
    """Return the next message of a stream, blocking; None at its end. Raises BrokenMessageError."""
    head = stream.read(HEADER)
    size = int.from_bytes(head, "little")
    if len(head) < HEADER:
        return None
    if size > LONGEST:
        raise BrokenMessageError
    body = stream.read(size)
    if len(body) < size:
        return None
    try:
        name, fields = json.loads(body)
        return _message(_KINDS[name], fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BrokenMessageError from error


def _message(kind: type[Message], fields: dict[str, Any]) -> Message:
    if kind is Ask:
        question = fields["question"]
        question["plot_id"] = bytes.fromhex(question["plot_id"])
        if fields["kind"] == "solve":
            question["partial_proof"] = bytes.fromhex(question["partial_proof"])
            return Ask(**{**fields, "question": SolveQuestion(**question)})
        question["line_points"] = tuple(question["line_points"])
        if question["challenge"] is not None:
            question["challenge"] = bytes.fromhex(question["challenge"])
        return Ask(**{**fields, "question": Question(**question)})
    if kind is Done:
        return Done(**{**fields, "xs": tuple(fields["xs"])})
    if kind is Pong:
        return Pong({int(number): steps for number, steps in fields["steps"].items()})
    return kind(**fields)
