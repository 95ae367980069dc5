"""The engine on a processor without vector extensions, such as the cheap ones in former mining rigs have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import mainnet, numba
from gpupool.pos.decompressor import Decompressor
from gpupool.pos.truncation import truncate
assert numba.core.config.CPU_NAME == "x86-64"
proof, engine = mainnet.K32[3], Decompressor(1)
for bits in (16, 18, 20):
    assert engine.recover_proof(proof.plot_id, bits, truncate(proof.xs, bits), proof.challenge) == proof.xs
"""


@pytest.mark.slow
def test_proofs_come_back_without_avx(tmp_path: Path, checkout: Path) -> None:
    """Compiles every kernel for the plainest processor, which takes half a minute."""
    environment = os.environ | {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": f"{checkout / 'src'}:{checkout / 'tests'}",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
