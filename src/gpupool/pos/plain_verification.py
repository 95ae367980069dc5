"""The judge of answers without numba, for programs that have to stay small: a proof in about 2 ms of plain Python.

Like `verification` it is written from the definition, value by value and for any k; it shares no primitive with it,
so that each can be tested against the other.
"""

from collections.abc import Sequence
from typing import Final

from gpupool.core.errors import InvalidInputError
from gpupool.pos.errors import InvalidProofError
from gpupool.pos.lanes import hash_all, keystream_blocks
from gpupool.pos.line_points import encode, line_point_limit, readings
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
from gpupool.pos.truncation import stands_on

_BLOCK_BITS: Final = 512
_COLLATED_BEFORE: Final = 4
_Entry = tuple[int, int]
"""y and metadata, both as numbers."""


def check_proof(
    plot_id: bytes, k: int, bits: int, line_points: Sequence[int], xs: Sequence[int], challenge: bytes | None
) -> None:
    """Raise InvalidProofError unless ``xs`` (64, proof order) answer the question.

    The question is a plot's ``line_points`` (32) after ``bits`` low bits were dropped; without a challenge (32 bytes)
    only the tables can be judged.
    """
    if len(xs) != PROOF_LENGTH or not stands_on(xs, bits, line_points):
        raise InvalidProofError("The proof is not one for these line points.")
    f7 = _tables(plot_id, k, xs) >> EXTRA_BITS
    if challenge is not None and f7 != int.from_bytes(challenge, "big") >> (8 * len(challenge) - k):
        raise InvalidProofError("The proof is not one for this challenge.")


def check_quality(
    plot_id: bytes, k: int, bits: int, line_point: int, pair: Sequence[int], challenge: bytes
) -> None:
    """Raise InvalidProofError unless ``pair`` (smaller, larger) answers the question.

    It must come from the ``line_point`` of two line points, be the one that the challenge picks, and match in table 2.
    """
    if len(pair) != 2 or pair[0] > pair[1]:
        raise InvalidProofError("A quality is a pair of x, the smaller one first.")
    cut, limit = encode(pair[0] >> bits, pair[1] >> bits), 1 << k - bits
    try:
        beside = [
            b if a == cut else a for a, b in readings(line_point, line_point_limit(limit)) if cut in {a, b}
        ]
        picked = any(_may_be_picked(pair[1] >> bits, other, limit, challenge) for other in beside)
    except InvalidInputError:
        picked = False
    if not picked:
        raise InvalidProofError("The pair is not the one that the challenge picks from this line point.")
    first, second = _first_values(plot_id, k, pair)
    if not (_matches(first[0], second[0]) or _matches(second[0], first[0])):
        raise InvalidProofError("The pair does not match in table 2.")


def _may_be_picked(larger: int, other: int, limit: int, challenge: bytes) -> bool:
    """Tell whether the challenge can pick a pair whose larger x begins with ``larger``, and not its sibling.

    A plot orders pairs by the larger x; where both begin alike, the dropped bits decide, which nobody has here.
    """
    picks_second = bool(challenge[-1] & 1)
    return any(
        larger == sibling or (larger > sibling) == picks_second for sibling, _ in readings(other, limit)
    )


def _tables(plot_id: bytes, k: int, xs: Sequence[int]) -> int:
    """Return the y of the entry that stands on all ``xs``."""
    entries = _first_values(plot_id, k, xs)
    table = 2
    while len(entries) > 1:
        entries = _parents(table, k, entries)
        table += 1
    return entries[0][0]


def _first_values(plot_id: bytes, k: int, xs: Sequence[int]) -> list[_Entry]:
    """Return the entries of table 1: bits x*k .. x*k + k of the keystream, then the upper six bits of x."""
    if not all(0 <= x < 1 << k for x in xs):
        raise InvalidProofError(f"A value of the proof has more than {k} bits.")
    places = [divmod(x * k, _BLOCK_BITS) for x in xs]
    wanted = dict.fromkeys(block for block, _ in places)
    wanted.update(
        dict.fromkeys((block + 1) & 0xFFFFFFFF for block, offset in places if offset + k > _BLOCK_BITS)
    )
    blocks = list(wanted)
    stream = dict(zip(blocks, keystream_blocks(b"\x01" + plot_id[:31], blocks), strict=True))
    found = []
    for x, (block, offset) in zip(xs, places, strict=True):
        two = stream[block] + stream.get((block + 1) & 0xFFFFFFFF, bytes(_BLOCK_BITS // 8))
        bits = int.from_bytes(two, "big") >> (2 * _BLOCK_BITS - offset - k) & ((1 << k) - 1)
        found.append((bits << EXTRA_BITS | x >> (k - EXTRA_BITS), x))
    return found


def _parents(table: int, k: int, entries: list[_Entry]) -> list[_Entry]:
    side = k * METADATA_WORDS[table]
    length = k + EXTRA_BITS + 2 * side
    padding = -length % 8
    collated, messages = [], []
    for index in range(0, len(entries), 2):
        (left, left_metadata), (right, right_metadata) = entries[index : index + 2]
        if not _matches(left, right):
            raise InvalidProofError(f"Two neighbouring values of the proof do not match in table {table}.")
        collated.append(left_metadata << side | right_metadata)
        message = (left << 2 * side | collated[-1]) << padding
        messages.append(message.to_bytes((length + padding) // 8, "big"))
    digests = [int.from_bytes(digest, "big") for digest in hash_all(messages, (length + padding) // 8)]
    ys = [digest >> (256 - k - EXTRA_BITS) for digest in digests]
    if table < _COLLATED_BEFORE or table == LAST_TABLE:
        return list(zip(ys, collated, strict=True))
    size = k * METADATA_WORDS[table + 1]
    return [
        (y, digest >> (256 - k - EXTRA_BITS - size) & ((1 << size) - 1))
        for y, digest in zip(ys, digests, strict=True)
    ]


def _matches(left: int, right: int) -> bool:
    group, left_rest = divmod(left, GROUP_SIZE)
    right_group, right_rest = divmod(right, GROUP_SIZE)
    if right_group != group + 1:
        return False
    m = (right_rest // COLUMNS - left_rest // COLUMNS) % ROWS
    step = (2 * m + group % 2) ** 2
    return m < TARGETS and (right_rest - left_rest - step) % COLUMNS == 0
