"""Clearing away what exited runs leave on disk, while their output stays readable for a time."""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpupool.core import failpoints
from gpupool.core.files import open_own_folders
from gpupool.runtimes.process.confinement import SHARED_MEMORY, own_users
from gpupool.runtimes.process.records import RunFolder

KEPT_OUTPUTS: Final = 50
"""Runs whose output stays after they are forgotten; the oldest go first."""


def forget(folder: RunFolder, uid: int | None = None) -> None:
    """Drop the record, the private folders and what the user ``uid`` left in shared memory; the output stays."""
    failpoints.reach("runtime.forget.before")
    free_shared_memory(own_users([uid]))
    folder.record_path.unlink(missing_ok=True)
    failpoints.reach("runtime.forget.after")
    for private in folder.private:
        _remove(private)


def free_shared_memory(uids: Collection[int], folder: Path = SHARED_MEMORY) -> None:
    """Remove the files of the users ``uids`` from shared memory: nobody else would, and they take up the machine's."""
    if not uids or not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid in uids:
                    os.unlink(entry.path)


def prune(runs: Path, keep: int = KEPT_OUTPUTS) -> None:
    """Remove the oldest forgotten runs beyond ``keep``."""
    forgotten = [
        path for path in runs.iterdir() if path.is_dir() and not RunFolder(path).record_path.exists()
    ]
    forgotten.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in forgotten[keep:]:
        _remove(path)


def _remove(top: Path) -> None:
    """Remove a folder as far as it goes, links in it as links; what a workload has closed to its own user too."""
    shutil.rmtree(top, ignore_errors=True)
    if os.path.lexists(top):
        open_own_folders(top)
        shutil.rmtree(top, ignore_errors=True)
