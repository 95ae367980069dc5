"""The program that checks answers for the proxy, in a process of its own: a proof costs 2 ms, which no client should wait.

It reads questions with their answers from standard input and writes one verdict each, in order, until the input
ends. It knows no network and needs neither numba nor numpy.
"""

import json
import signal
import struct
import sys
from contextlib import suppress
from typing import Any, BinaryIO, Final

from gpupool.core.errors import InvalidInputError
from gpupool.pos.errors import InvalidProofError
from gpupool.pos.plain_verification import check_proof, check_quality

TASK: Final = struct.Struct("<BII")
"""1 for a proof or 2 for a quality, then the bytes of the question and of the answer that follow."""
VERDICT: Final = struct.Struct("<BH")
"""One of the verdicts, then the bytes of the reason that follows."""
RIGHT: Final = 0
WRONG: Final = 1
UNKNOWN: Final = 2
"""The question is not one that can be judged."""
PROOF: Final = 1
QUALITY: Final = 2
_K: Final = 32
_COUNTS: Final = {PROOF: 64, QUALITY: 2}
_DIGITS: Final = 33
_BITS_AT_LEVEL_ZERO: Final = 15


def verdict(kind: int, question: bytes, answer: bytes) -> tuple[int, str]:
    """Return what an answer is worth, and why where it is wrong; ``kind`` as in `TASK`."""
    try:
        fields = json.loads(question)
        k, bits = int(fields["k"]), fields.get("bits")
        bits = int(fields["level"]) + _BITS_AT_LEVEL_ZERO if bits is None else int(bits)
        plot_id = bytes.fromhex(fields["plot_id"])
        told = fields.get("challenge")
        challenge = None if told is None else bytes.fromhex(told)
        points = [_number(text) for text in fields["line_points"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return UNKNOWN, ""
    lengths = (len(plot_id), 32 if challenge is None else len(challenge))
    if k != _K or not 0 < bits < k or lengths != (32, 32) or not 0 < len(points) <= _K:
        return UNKNOWN, ""
    try:
        numbers = _numbers(kind, answer)
        if kind == PROOF:
            check_proof(plot_id, k, bits, points, numbers, challenge)
        elif challenge is None:
            return UNKNOWN, ""
        else:
            check_quality(plot_id, k, bits, points[0], numbers, challenge)
    except (InvalidProofError, InvalidInputError) as error:
        return WRONG, error.message
    except (ValueError, KeyError, TypeError, RecursionError):
        return WRONG, "The answer cannot be read."
    return RIGHT, ""


def _numbers(kind: int, answer: bytes) -> list[int]:
    """Return the numbers of an answer big-endian with four bytes each, or in JSON, which is always longer."""
    count = _COUNTS[kind]
    if len(answer) == 4 * count:
        return list(struct.unpack(f">{count}I", answer))
    fields: dict[str, Any] = json.loads(answer)
    return [_number(text) for text in fields["proof" if kind == PROOF else "x"]]


def _number(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError("too long a number")
    return int(text, 16)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Judge what comes until the input ends."""
    while len(head := source.read(TASK.size)) == TASK.size:
        kind, asked, answered = TASK.unpack(head)
        question, answer = source.read(asked), source.read(answered)
        if len(answer) < answered:
            return
        worth, reason = verdict(kind, question, answer)
        words = reason.encode()[:500]
        sink.write(VERDICT.pack(worth, len(words)) + words)
        sink.flush()


if __name__ == "__main__":
    # The proxy tells it to end by closing the pipe, after its own last request.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
