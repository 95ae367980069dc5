"""Clearing away what exited runs leave on disk, while their output stays readable for a time."""

import shutil
from pathlib import Path
from typing import Final

from gpupool.core import failpoints
from gpupool.runtimes.process.records import RunFolder

KEPT_OUTPUTS: Final = 50
"""Runs whose output stays after they are forgotten; the oldest go first."""


def forget(folder: RunFolder) -> None:
    """Drop the record and the private folders of an exited run; the output stays."""
    failpoints.reach("runtime.forget.before")
    folder.record_path.unlink(missing_ok=True)
    failpoints.reach("runtime.forget.after")
    for private in folder.private:
        shutil.rmtree(private, ignore_errors=True)


def prune(runs: Path, keep: int = KEPT_OUTPUTS) -> None:
    """Remove the oldest forgotten runs beyond ``keep``."""
    forgotten = [
        path for path in runs.iterdir() if path.is_dir() and not RunFolder(path).record_path.exists()
    ]
    forgotten.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in forgotten[keep:]:
        shutil.rmtree(path, ignore_errors=True)
