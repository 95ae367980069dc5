"""Programs of others in environments of their own, made the first time that a test asks: such a test is slow."""

import subprocess
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


@cache
def environment(peer: str) -> Path:
    """Return the folder of the environment of ``peer`` (chia, chutes), made if need be. Not to be changed."""
    made = subprocess.run(
        [CHECKOUT / "scripts" / "peer_env.sh", peer],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert made.returncode == 0, f"scripts/peer_env.sh {peer} failed:\n{made.stderr}"
    return Path(made.stdout.strip())
