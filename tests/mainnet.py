"""The real proofs of `tests/data`, as tests want them."""

import json
from pathlib import Path

from gpupool.pos.parameters import PROOF_LENGTH
from gpupool.recompute.demo import KnownProof

_FILE = Path(__file__).parent / "data" / "mainnet_proofs.json"


def _read() -> list[KnownProof]:
    proofs = []
    for fields in json.loads(_FILE.read_text()):
        k, packed = fields["k"], int(fields["proof"], 16)
        proofs.append(
            KnownProof(
                plot_id=bytes.fromhex(fields["plot_id"]),
                k=k,
                challenge=bytes.fromhex(fields["challenge"]),
                xs=tuple(packed >> k * (PROOF_LENGTH - 1 - i) & ((1 << k) - 1) for i in range(PROOF_LENGTH)),
                quality=bytes.fromhex(fields["quality"]),
            )
        )
    return proofs


ALL = _read()
K32 = [proof for proof in ALL if proof.k == 32]
K33 = [proof for proof in ALL if proof.k == 33]
