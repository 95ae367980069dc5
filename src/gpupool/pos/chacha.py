"""ChaCha8, the source of every first value y: table 1 is its keystream under a key made of the plot id.

The rounds are written out over sixteen names instead of an array, because only then LLVM computes eight or sixteen
blocks side by side in vector registers (ten times the speed).
"""

import numpy as np

from gpupool.pos.compiling import Words, kernel, part

U32 = np.uint32
U64 = np.uint64
State = tuple[U32, U32, U32, U32, U32, U32, U32, U32, U32, U32, U32, U32, U32, U32, U32, U32]
BLOCK_WORDS = 16


def plot_key(plot_id: bytes) -> Words:
    """Return the eight key words of a plot (``plot_id``: 32 bytes)."""
    return np.frombuffer(b"\x01" + plot_id[:31], "<u4").astype(np.uint32)


@part
def rotate_left(value: U32, count: U32) -> U32:
    """Rotate 32 bits."""
    return U32(U32(value << count) | U32(value >> U32(U32(32) - count)))


@part
def swap_bytes(word: U32) -> U32:
    """Turn a little-endian word into a big-endian one, or back."""
    inner = U32(U32(word >> U32(8)) & U32(0xFF00)) | U32(U32(word << U32(8)) & U32(0xFF0000))
    return U32(U32(word >> U32(24)) | inner | U32(word << U32(24)))


@part
def _quarter(a: U32, b: U32, c: U32, d: U32) -> tuple[U32, U32, U32, U32]:
    a = U32(a + b)
    d = rotate_left(U32(d ^ a), U32(16))
    c = U32(c + d)
    b = rotate_left(U32(b ^ c), U32(12))
    a = U32(a + b)
    d = rotate_left(U32(d ^ a), U32(8))
    c = U32(c + d)
    b = rotate_left(U32(b ^ c), U32(7))
    return a, b, c, d


@part
def _double_round(state: State) -> State:
    s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15 = state
    s0, s4, s8, s12 = _quarter(s0, s4, s8, s12)
    s1, s5, s9, s13 = _quarter(s1, s5, s9, s13)
    s2, s6, s10, s14 = _quarter(s2, s6, s10, s14)
    s3, s7, s11, s15 = _quarter(s3, s7, s11, s15)
    s0, s5, s10, s15 = _quarter(s0, s5, s10, s15)
    s1, s6, s11, s12 = _quarter(s1, s6, s11, s12)
    s2, s7, s8, s13 = _quarter(s2, s7, s8, s13)
    s3, s4, s9, s14 = _quarter(s3, s4, s9, s14)
    return s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15


@part
def _four_double_rounds(state: State) -> State:
    return _double_round(_double_round(_double_round(_double_round(state))))


@kernel
def fill_keystream(key: Words, first_block: U64, keystream: Words) -> None:
    """Write n consecutive blocks to ``keystream`` [16, n]: row w, column j is word w of block ``first_block + j``.

    Words are big-endian numbers, as f1 reads them. Blocks are counted with 64 bits.
    """
    zero = U32(0)
    first, first_high = U32(first_block), U32(first_block >> U64(32))
    c0, c1, c2, c3 = U32(0x61707865), U32(0x3320646E), U32(0x79622D32), U32(0x6B206574)
    k0, k1, k2, k3, k4, k5, k6, k7 = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]
    for j in range(keystream.shape[1]):
        counter = U32(first + U32(j))
        high = U32(first_high + U32(counter < first))
        start = (c0, c1, c2, c3, k0, k1, k2, k3, k4, k5, k6, k7, counter, high, zero, zero)
        end = _four_double_rounds(start)
        keystream[0, j] = swap_bytes(U32(end[0] + c0))
        keystream[1, j] = swap_bytes(U32(end[1] + c1))
        keystream[2, j] = swap_bytes(U32(end[2] + c2))
        keystream[3, j] = swap_bytes(U32(end[3] + c3))
        keystream[4, j] = swap_bytes(U32(end[4] + k0))
        keystream[5, j] = swap_bytes(U32(end[5] + k1))
        keystream[6, j] = swap_bytes(U32(end[6] + k2))
        keystream[7, j] = swap_bytes(U32(end[7] + k3))
        keystream[8, j] = swap_bytes(U32(end[8] + k4))
        keystream[9, j] = swap_bytes(U32(end[9] + k5))
        keystream[10, j] = swap_bytes(U32(end[10] + k6))
        keystream[11, j] = swap_bytes(U32(end[11] + k7))
        keystream[12, j] = swap_bytes(U32(end[12] + counter))
        keystream[13, j] = swap_bytes(U32(end[13] + high))
        keystream[14, j] = swap_bytes(end[14])
        keystream[15, j] = swap_bytes(end[15])
