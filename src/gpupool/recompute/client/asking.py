"""Questions from files, and answers in words that other tools know: for looking one thing up by hand."""

import json
from typing import Any, Final

from pydantic import ValidationError

from gpupool.contracts.problems import describe
from gpupool.contracts.recompute import ProofRequest, QualityRequest, hexadecimal
from gpupool.core.errors import InvalidInputError, TooLargeError
from gpupool.pos.proofs import pack_proof, unpack_proof
from gpupool.pos.quality import proof_pair, quality_string
from gpupool.recompute.client.questions import Answer
from gpupool.recompute.demo import KnownProof, proof_request

FILE_LIMIT: Final = 64 * 1024
"""Bytes of a question."""
_QUALITY_LINE_POINTS: Final = 2
_REMEDY: Final = (
    "Give plot_id, k, level, challenge and line_points (32 for a proof, 1 or 2 for a quality), "
    "or plot_id, k, challenge and a whole proof, which is then truncated."
)
Request = ProofRequest | QualityRequest


def read_request(text: str, level: int) -> Request:
    """Return the question in a JSON text: a request as it goes over the wire, or a whole proof.

    ``level`` (1..7) is what a whole proof is truncated to. Raises InvalidInputError where it is neither.
    """
    if len(text) > FILE_LIMIT:
        raise TooLargeError(f"A question has at most {FILE_LIMIT // 1024} KiB.")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"The question is not JSON: {error}.", remedy=_REMEDY) from error
    if not isinstance(fields, dict):
        raise InvalidInputError("The question is no JSON object.", remedy=_REMEDY)
    if "proof" in fields:
        return _truncated(fields, level)
    points = fields.get("line_points")
    of_quality = isinstance(points, list) and len(points) <= _QUALITY_LINE_POINTS
    try:
        return (QualityRequest if of_quality else ProofRequest).model_validate(fields)
    except ValidationError as error:
        raise InvalidInputError(f"The question is not valid: {describe(error)}.", remedy=_REMEDY) from error


def _truncated(fields: dict[str, Any], level: int) -> ProofRequest:
    try:
        k = int(fields["k"])
        known = KnownProof(
            plot_id=bytes.fromhex(fields["plot_id"]),
            k=k,
            challenge=bytes.fromhex(fields["challenge"]),
            xs=unpack_proof(bytes.fromhex(fields["proof"].removeprefix("0x")), k),
            quality=b"",
        )
        return proof_request(known, level)
    except KeyError as error:
        raise InvalidInputError(f"The proof has no {error.args[0]}.", remedy=_REMEDY) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            "A field of the proof is not valid: k is a number, the others are hexadecimal text.",
            remedy=_REMEDY,
        ) from error


def answer_fields(request: Request, answer: Answer) -> dict[str, Any]:
    """Return an answer as plain values for JSON: ``proof`` as one number, as chiapos prints it, and ``quality``."""
    fields: dict[str, Any] = {
        "host": answer.host,
        "ms": round(answer.seconds * 1000, 1),
        "request_id": answer.request_id,
        "x": hexadecimal(answer.numbers),
        "troubles": list(answer.troubles),
    }
    challenge = None if request.challenge is None else bytes.fromhex(request.challenge)
    pair: tuple[int, ...] = answer.numbers
    if isinstance(request, ProofRequest):
        fields["proof"] = pack_proof(answer.numbers, request.k).hex()
        pair = () if challenge is None else proof_pair(answer.numbers, challenge)
    if challenge is not None:
        fields["quality"] = quality_string(challenge, (pair[0], pair[1]), request.k).hex()
    return fields
