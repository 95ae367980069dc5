"""BLAKE3 of one short message, the function that makes an entry's y and metadata from its two sides.

Every input of tables 2 to 7 fits one block of 64 bytes, so the tree part of BLAKE3 is not needed.
"""

import numpy as np

from gpupool.pos.chacha import rotate_left
from gpupool.pos.compiling import Words, kernel

U32 = np.uint32
BLOCK_BYTES = 64
_ONE_BLOCK_FLAGS = 1 | 2 | 8
"""First block, last block and root of the tree at once."""
_START = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19],
    np.uint32,
)
_PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
_LANES = np.array(
    [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
        [0, 5, 10, 15],
        [1, 6, 11, 12],
        [2, 7, 8, 13],
        [3, 4, 9, 14],
    ]
)
ROUNDS = 7


def _schedule() -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    rows = np.zeros((ROUNDS, 16), np.int64)
    rows[0] = np.arange(16)
    for index in range(1, ROUNDS):
        rows[index] = rows[index - 1][_PERMUTATION]
    return rows


_SCHEDULE = _schedule()


@kernel
def hash_block(message: Words, length: U32, state: Words) -> None:
    """Hash ``length`` (<= 64) bytes held in ``message`` (16 little-endian words, zero after the end).

    ``state`` [16] is scratch; its first eight words hold the hash, little-endian, at return.
    """
    for i in range(8):
        state[i] = _START[i]
    for i in range(4):
        state[8 + i] = _START[i]
    state[12] = 0
    state[13] = 0
    state[14] = length
    state[15] = _ONE_BLOCK_FLAGS
    for r in range(7):
        for i in range(8):
            a, b, c, d = _LANES[i, 0], _LANES[i, 1], _LANES[i, 2], _LANES[i, 3]
            state[a] = U32(U32(state[a] + state[b]) + message[_SCHEDULE[r, 2 * i]])
            state[d] = rotate_left(U32(state[d] ^ state[a]), U32(16))
            state[c] = U32(state[c] + state[d])
            state[b] = rotate_left(U32(state[b] ^ state[c]), U32(20))
            state[a] = U32(U32(state[a] + state[b]) + message[_SCHEDULE[r, 2 * i + 1]])
            state[d] = rotate_left(U32(state[d] ^ state[a]), U32(24))
            state[c] = U32(state[c] + state[d])
            state[b] = rotate_left(U32(state[b] ^ state[c]), U32(25))
    for i in range(8):
        state[i] = U32(state[i] ^ state[i + 8])


def hash_bytes(message: bytes) -> bytes:
    """Return BLAKE3 of ``message`` (at most 64 bytes)."""
    if len(message) > BLOCK_BYTES:
        raise ValueError(f"one block holds {BLOCK_BYTES} bytes")
    words = np.frombuffer(message.ljust(BLOCK_BYTES, b"\0"), "<u4").astype(np.uint32)
    state = np.empty(16, np.uint32)
    hash_block(words, U32(len(message)), state)
    return state[:8].astype("<u4").tobytes()
