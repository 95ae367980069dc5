"""Bladebit-compressed k=32 plots of a few hundred kilobytes, each holding one known proof, for Chia's own prover.

A whole such plot takes 80 GB and hours to make. But on its way from a challenge to a proof the prover reads only a few
parks, so a file with just those is a plot to it, and its look-ups are real ones. Two things keep that simple:

- Every entry is the first of a park of its own (its position is its rank times the entries of a park), so it is what
  the park begins with, and nothing is ever added up to reach it.
- What follows in a park must still be decodable. Any short stream of bits decodes to something; in tables it does not
  matter to what, and `C3_STREAM` is one of the about one in seven of six bytes that lead to exactly one proof.
"""

import struct
from pathlib import Path
from typing import Final

from gpupool.pos.line_points import encode
from gpupool.pos.parameters import dropped_bits
from gpupool.pos.truncation import truncate_twice
from gpupool.recompute.demo import KnownProof

_K: Final = 32
_ENTRIES: Final = 2048
"""Of a park."""
_LOWEST: Final = {
    1: (29, 8336), 2: (25, 7360), 3: (21, 6352), 4: (16, 5325), 5: (12, 4300), 6: (8, 3273), 7: (4, 2250),
}  # fmt: skip
"""Level -> bits of a stub and bytes of a park of the lowest table that such a plot has."""
_UPPER: Final = (29, 8 + (2047 * 29 + 7) // 8 + (2047 * 7 // 2 + 7) // 8)
"""The same for the tables above it: check-point, stubs, and three and a half bits a difference."""
_P7_BYTES: Final = (_K + 1) * _ENTRIES // 8
_C3_BYTES: Final = 3000
_STREAM: Final = bytes.fromhex("112233445566")
C3_STREAM: Final = bytes.fromhex("50a4a3a65c0c")
"""Decodes to a first difference of one and a second above zero: the value sought comes once, second in its park."""


def mint(proof: KnownProof, level: int, path: Path, memo: bytes = bytes(128)) -> Path:
    """Write a plot of ``level`` (1..7) with ``proof`` (k=32) in it to ``path``, and return that."""
    before = (int.from_bytes(proof.challenge[:4], "big") - 1).to_bytes(4, "big")
    head = b"PLOT" + struct.pack("<I", 2) + proof.plot_id + bytes([_K])
    head += struct.pack(">H", len(memo)) + memo + struct.pack("<I", 1) + bytes([level])
    tables = [b""]  # there is no table 1
    for number, line_points in enumerate(_tables(proof.xs, level)):
        stub_bits, size = _LOWEST[level] if number == 0 else _UPPER
        tables.append(b"".join(_park(line_point, stub_bits, size) for line_point in line_points))
    tables.append(bytes(_P7_BYTES))
    tables.append(before + bytes(8))  # C1: a check-point, and what ends the list
    tables.append(before + bytes(4))  # C2, likewise
    tables.append((struct.pack(">H", len(C3_STREAM)) + C3_STREAM).ljust(_C3_BYTES, b"\0"))
    sizes = [len(table) for table in tables]
    start = len(head) + 2 * 8 * len(tables)
    pointers = [start + sum(sizes[:number]) for number in range(len(tables))]
    path.write_bytes(head + struct.pack(">20Q", *pointers, *sizes) + b"".join(tables))
    return path


def _park(line_point: int, stub_bits: int, size: int) -> bytes:
    stubs = bytes(((_ENTRIES - 1) * stub_bits + 7) // 8)
    return (line_point.to_bytes(8, "big") + stubs + struct.pack("<H", len(_STREAM)) + _STREAM).ljust(
        size, b"\0"
    )


def _tables(xs: tuple[int, ...], level: int) -> list[list[int]]:
    """Return the line points of tables 2 to 6, each in the order in which a plotter sorts them."""
    here = list(truncate_twice(xs, dropped_bits(level)))
    tables = [sorted(here)]
    while len(here) > 1:
        positions = [tables[-1].index(line_point) * _ENTRIES for line_point in here]
        here = [encode(positions[i], positions[i + 1]) for i in range(0, len(positions), 2)]
        tables.append(sorted(here))
    return tables
