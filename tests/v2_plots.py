"""Small v2 plots, made by Chia's own library, with partial proofs of theirs."""

import hashlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import chia_rs
from chia_rs.sized_bytes import bytes32
from chia_rs.sized_ints import uint8, uint16

from gpupool.solvers.questions import SolveQuestion

K = 18


@cache
def questions(strength: int = 2, least: int = 3) -> tuple[SolveQuestion, ...]:
    """Return questions of a plot made for this run; at least so many."""
    group = bytes32(hashlib.sha256(b"a plot of the tests").digest())
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "plot-v2.plot")
        chia_rs.create_v2_single_plot_group(path, K, strength, group, uint16(0), uint8(0), bytes(112))
        prover = chia_rs.Prover(path)
        plot_id = bytes(prover.plot_id_for_index(uint16(0)))
        found: list[SolveQuestion] = []
        number = 0
        while len(found) < least:
            challenge = bytes32(hashlib.sha256(number.to_bytes(4, "big")).digest())
            found += [
                SolveQuestion(quality.chain.to_bytes(), plot_id, K, strength)
                for quality in prover.get_qualities_for_challenge(challenge)
            ]
            number += 1
    return tuple(found)
