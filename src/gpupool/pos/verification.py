"""Our own judge of a proof: every answer passes here before it leaves, and may pass again where it arrives.

It is written from the definition, value by value and for any k, and shares only ChaCha8 and BLAKE3 with the engine
that recovers proofs: a fault in the joins or in the packing of bits cannot hide itself. About 1 ms a proof.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpupool.pos.blake3 import hash_bytes
from gpupool.pos.chacha import BLOCK_WORDS, fill_keystream, plot_key
from gpupool.pos.compiling import Words
from gpupool.pos.errors import InvalidProofError
from gpupool.pos.parameters import (
    COLUMNS,
    EXTRA_BITS,
    GROUP_SIZE,
    LAST_TABLE,
    METADATA_WORDS,
    PROOF_LENGTH,
    ROWS,
    TARGETS,
)
from gpupool.pos.quality import proof_pair, quality_string

_BLOCK_BITS = 32 * BLOCK_WORDS
_COLLATED_BEFORE = 4


@dataclass(frozen=True, slots=True)
class _Entry:
    y: int
    metadata: int
    """As one number; its length in bits follows from table and k."""


def verify_proof(plot_id: bytes, k: int, xs: Sequence[int], challenge: bytes) -> bytes:
    """Return the quality (32 bytes) of a full proof; raises InvalidProofError where it is not valid.

    ``xs`` are 64 numbers of ``k`` bits in proof order; ``plot_id`` and ``challenge`` have 32 bytes.
    """
    if len(xs) != PROOF_LENGTH:
        raise InvalidProofError(f"A proof has {PROOF_LENGTH} values, this one has {len(xs)}.")
    f7 = verify_tables(plot_id, k, xs) >> EXTRA_BITS
    if f7 != int.from_bytes(challenge, "big") >> (8 * len(challenge) - k):
        raise InvalidProofError("The proof is not one for this challenge.")
    return quality_string(challenge, proof_pair(xs, challenge), k)


def verify_tables(plot_id: bytes, k: int, xs: Sequence[int]) -> int:
    """Return the y of the entry that stands on ``xs`` (2, 4, .. 64 of them, in proof order).

    Raises InvalidProofError where two neighbours do not match, or a value has more than ``k`` bits.
    """
    if not all(0 <= x < 1 << k for x in xs):
        raise InvalidProofError(f"A value of the proof has more than {k} bits.")
    key = plot_key(plot_id)
    entries = [_Entry(_first_y(key, k, x), x) for x in xs]
    table = 2
    while len(entries) > 1:
        entries = [_parent(table, k, entries[i], entries[i + 1]) for i in range(0, len(entries), 2)]
        table += 1
    return entries[0].y


def _first_y(key: Words, k: int, x: int) -> int:
    """Bits x*k .. x*k + k of the keystream, then the upper six bits of x."""
    block, offset = divmod(x * k, _BLOCK_BITS)
    words = np.empty((BLOCK_WORDS, 2), np.uint32)
    fill_keystream(key, np.uint64(block), words)
    stream = int.from_bytes(words.T.astype(">u4").tobytes(), "big")
    bits = stream >> (2 * _BLOCK_BITS - offset - k) & ((1 << k) - 1)
    return bits << EXTRA_BITS | x >> (k - EXTRA_BITS)


def _parent(table: int, k: int, left: _Entry, right: _Entry) -> _Entry:
    if not _matches(left.y, right.y):
        raise InvalidProofError(f"Two neighbouring values of the proof do not match in table {table}.")
    words = METADATA_WORDS[table]
    side = k * words
    length = k + EXTRA_BITS + 2 * side
    collated = left.metadata << side | right.metadata
    padding = -length % 8
    message = (left.y << 2 * side | collated) << padding
    digest = int.from_bytes(hash_bytes(message.to_bytes((length + padding) // 8, "big")), "big")
    y = digest >> (256 - k - EXTRA_BITS)
    if table < _COLLATED_BEFORE or table == LAST_TABLE:
        return _Entry(y, collated)
    size = k * METADATA_WORDS[table + 1]
    return _Entry(y, digest >> (256 - k - EXTRA_BITS - size) & ((1 << size) - 1))


def _matches(left: int, right: int) -> bool:
    group, left_rest = divmod(left, GROUP_SIZE)
    right_group, right_rest = divmod(right, GROUP_SIZE)
    if right_group != group + 1:
        return False
    m = (right_rest // COLUMNS - left_rest // COLUMNS) % ROWS
    step = (2 * m + group % 2) ** 2
    return m < TARGETS and (right_rest - left_rest - step) % COLUMNS == 0
