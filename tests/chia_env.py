"""Stock chia-blockchain in an environment of its own, made the first time that a test asks for it.

Making it takes half a minute and 200 MB, so a test that asks is marked `slow`. Whoever changes the environment takes
a copy of it, since every test of a run shares the one that `scripts/peer_env.sh` made.
"""

import os
import shutil
import subprocess
from pathlib import Path

import peer_env

RELEASE = "2.7.5"


def environment() -> Path:
    """Return the folder of the shared environment (`bin/python`, `bin/chia`), made if need be. Not to be changed."""
    return peer_env.environment("chia")


def python() -> Path:
    """Return the interpreter that has stock Chia."""
    return environment() / "bin" / "python"


def copy(target: Path) -> Path:
    """Return an environment of the test's own at ``target``, which must not exist yet. Takes a second or two."""
    shutil.copytree(environment(), target, symlinks=True)
    for script in (target / "bin").iterdir():
        # Console scripts name their interpreter with its full path.
        if script.is_file() and not script.is_symlink():
            content = script.read_bytes()
            moved = content.replace(os.fsencode(environment()), os.fsencode(target))
            if moved != content:
                script.write_bytes(moved)
    return target


def variables(root: Path) -> dict[str, str]:
    """Return what a program of Chia's gets as its environment: ``root`` holds its configuration and its keys.

    Nothing of the tests' own Python reaches it.
    """
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"HOME": str(root), "CHIA_ROOT": str(root / "chia"), "CHIA_KEYS_ROOT": str(root / "keys")}


def chia(
    *arguments: str, root: Path, venv: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run `chia ARGUMENTS` to its end with ``root`` as in `variables`, and ``more`` variables on top."""
    program = (venv or environment()) / "bin" / "chia"
    return subprocess.run(
        [program, *arguments],
        env=variables(root) | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
