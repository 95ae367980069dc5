"""A full proof as numbers and as bytes: 64 values of k bits, one after the other, most significant bit first."""

from collections.abc import Sequence

from gpupool.core.errors import InvalidInputError
from gpupool.pos.parameters import PROOF_LENGTH


def pack_proof(xs: Sequence[int], k: int) -> bytes:
    """Return 64 values x of ``k`` bits each as 8 * k bytes; raises InvalidInputError where they do not fit."""
    if len(xs) != PROOF_LENGTH or not all(0 <= x < 1 << k for x in xs):
        raise InvalidInputError(f"A proof of k={k} is {PROOF_LENGTH} numbers of {k} bits.")
    packed = 0
    for x in xs:
        packed = packed << k | x
    return packed.to_bytes(PROOF_LENGTH * k // 8, "big")


def unpack_proof(proof: bytes, k: int) -> tuple[int, ...]:
    """Return the 64 values x of a proof of 8 * k bytes; raises InvalidInputError for any other length."""
    if len(proof) != PROOF_LENGTH * k // 8:
        raise InvalidInputError(
            f"A proof of k={k} has {PROOF_LENGTH * k // 8} bytes, this one has {len(proof)}."
        )
    packed, mask = int.from_bytes(proof, "big"), (1 << k) - 1
    return tuple(packed >> k * (PROOF_LENGTH - 1 - index) & mask for index in range(PROOF_LENGTH))
