"""Many 32-bit words in one large integer, so that plain Python computes ChaCha8 and BLAKE3 of many inputs at once.

Each word has a lane of 64 bits; its upper half takes what an addition or a rotation pushes out and is cleared after.
An operation on 64 lanes costs little more than on one, which makes up for the interpreter: 64 blocks of ChaCha8 take
some 0.3 ms. It is for programs that must stay small and check a proof now and then; the kernels of `chacha` and
`blake3` are a hundred times faster and need numba.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final

_LANE_BITS: Final = 64
_WORD: Final = 0xFFFFFFFF
_CHACHA_CONSTANTS: Final = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_DOUBLE_ROUNDS: Final = 4
_QUARTERS: Final = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_BLAKE_START: Final = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
_PERMUTATION: Final = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_BLAKE_ROUNDS: Final = 7
_ONE_BLOCK_FLAGS: Final = 1 | 2 | 8


@cache
def _ones(lanes: int) -> int:
    """Return the number with a one in each lane."""
    return sum(1 << _LANE_BITS * lane for lane in range(lanes))


def pack(words: Sequence[int]) -> int:
    """Return ``words`` (32 bits each) in lanes, the first one lowest."""
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *words), "little")


def unpack(lanes: int, count: int) -> tuple[int, ...]:
    """Return the words of ``count`` lanes."""
    return struct.unpack(f"<{count}Q", lanes.to_bytes(8 * count, "little"))


def _mix(
    state: list[int], places: tuple[int, int, int, int], mask: int, adds: tuple[int, int], left: bool
) -> None:
    """Mix four words of every lane: the quarter round of ChaCha, and with other rotations that of BLAKE3."""
    a, b, c, d = places
    first, second, third, fourth = (16, 12, 8, 7) if left else (16, 20, 24, 25)
    va, vb, vc, vd = state[a], state[b], state[c], state[d]
    va = va + vb + adds[0] & mask
    vd ^= va
    vd = (vd << first | vd >> 32 - first) & mask
    vc = vc + vd & mask
    vb ^= vc
    vb = (vb << second | vb >> 32 - second) & mask
    va = va + vb + adds[1] & mask
    vd ^= va
    vd = (vd << third | vd >> 32 - third) & mask
    vc = vc + vd & mask
    vb ^= vc
    vb = (vb << fourth | vb >> 32 - fourth) & mask
    state[a], state[b], state[c], state[d] = va, vb, vc, vd


def keystream_blocks(key: bytes, blocks: Sequence[int]) -> list[bytes]:
    """Return the 64 bytes of each of the ``blocks`` (numbers below 2^64) of the ChaCha8 stream under ``key`` (32 bytes)."""
    count = len(blocks)
    ones = _ones(count)
    mask = ones * _WORD
    words = (*_CHACHA_CONSTANTS, *struct.unpack("<8I", key))
    start = [word * ones for word in words] + [
        pack([block & _WORD for block in blocks]),
        pack([block >> 32 for block in blocks]),
        0,
        0,
    ]
    state = list(start)
    for _ in range(_DOUBLE_ROUNDS):
        for places in _QUARTERS:
            _mix(state, places, mask, (0, 0), left=True)
    columns = [unpack(end + begin & mask, count) for end, begin in zip(state, start, strict=True)]
    return [struct.pack("<16I", *(column[lane] for column in columns)) for lane in range(count)]


def hash_all(messages: Sequence[bytes], length: int) -> list[bytes]:
    """Return BLAKE3 (32 bytes) of each message, all of ``length`` (at most 64) bytes."""
    count = len(messages)
    ones = _ones(count)
    mask = ones * _WORD
    rows = [struct.unpack("<16I", message.ljust(64, b"\0")) for message in messages]
    block = [pack(column) for column in zip(*rows, strict=True)]
    state = [word * ones for word in (*_BLAKE_START, *_BLAKE_START[:4], 0, 0, length, _ONE_BLOCK_FLAGS)]
    for _ in range(_BLAKE_ROUNDS):
        for index, places in enumerate(_QUARTERS):
            _mix(state, places, mask, (block[2 * index], block[2 * index + 1]), left=False)
        block = [block[place] for place in _PERMUTATION]
    columns = [unpack(state[word] ^ state[word + 8], count) for word in range(8)]
    return [struct.pack("<8I", *(column[lane] for column in columns)) for lane in range(count)]
