"""An environment that looks like stock Chia's: real enough for Python to start in, with a harvester that waits."""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httptools

HARVESTER = """\
import sys, os
print("up", os.environ.get("GPUPOOL_HARVESTER_SIDECAR", "-"), flush=True)
sys.stdin.read()
"""
CONFIG = """\
farmer: &farmer
  port: 8447
harvester:
  <<: *farmer
  num_threads: 30
  parallel_decompressor_count: {count}
  decompressor_timeout: 20
  max_compression_level_allowed: 7
  use_gpu_harvesting: false
  enforce_gpu_index: false
"""


def make_environment(folder: Path, chia: str = "2.7.5", chiapos: str = "2.0.12") -> Path:
    """Make a virtual environment with the marks of Chia, and return its `site-packages`."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    (site / f"chia_blockchain-{chia}.dist-info").mkdir()
    (site / f"chiapos-{chiapos}.dist-info").mkdir()
    (site / "chiapos.libs").mkdir()
    (site / "chiapos.libs" / "libbladebit_harvester-275612fa.so").write_bytes(b"not a real one")
    for name in ("chia", "chia_harvester"):
        script = folder / "bin" / name
        script.write_text(f"#!{folder}/bin/python\n{HARVESTER}")
        script.chmod(0o755)
    return site


def make_root(folder: Path, count: int = 24) -> Path:
    """Make Chia's own folder with its configuration, and return it."""
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "config.yaml").write_text(CONFIG.format(count=count))
    return folder


def some_library() -> bytes:
    """Return a library that any process here can load."""
    return Path(httptools.parser.parser.__file__).read_bytes()


@contextmanager
def running(program: Path, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a harvester of such an environment for as long as the block lasts; it is up when this gives it."""
    process = subprocess.Popen(
        [program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | variables,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        while line and not line.startswith("up "):
            line = process.stdout.readline()
        assert line.startswith("up "), f"{program} did not come up with {sys.executable}"
        yield process
    finally:
        process.kill()
        process.communicate()
