"""A real small disk for tests: a tmpfs in a mount namespace of its own, which programs are started into.

Whoever is not root gets a user namespace around it, in which they may mount. The disk lives as long as its keeper
process and is seen from outside through /proc.
"""

import os
import subprocess
from pathlib import Path
from typing import Self

_KEEPER = 'mount -t tmpfs -o "size=$2,mode=700" small "$1" && echo mounted && exec sleep infinity'
_ENOSPC = 28
ROOT = os.geteuid() == 0


class SmallDisk:
    """A disk of ``size`` (such as ``8m``) mounted at ``path`` for whoever is started with `prefix`."""

    def __init__(self, path: Path, size: str = "8m") -> None:
        self.path = path
        path.mkdir(parents=True)
        self._keeper = subprocess.Popen(
            [
                "unshare",
                *(() if ROOT else ("--map-root-user",)),
                "--mount",
                "sh",
                "-c",
                _KEEPER,
                "sh",
                str(path),
                size,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "mounted\n":
            _, told = self._keeper.communicate()
            raise OSError(f"this machine lets nobody mount a small disk, which this test needs: {told}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.kill()
        self._keeper.communicate()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put in front of a command so that it sees the disk; the process id stays that of the command."""
        user = () if ROOT else ("--preserve-credentials", "--user")
        return ("nsenter", *user, "--mount", "--target", str(self._keeper.pid))

    @property
    def seen(self) -> Path:
        """The disk's root as the test sees it."""
        return Path(f"/proc/{self._keeper.pid}/root{self.path}")

    def fill(self) -> None:
        """Leave not one free byte."""
        with (self.seen / "filler").open("ab", buffering=0) as file:
            for size in (2**16, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != _ENOSPC:
                        raise

    def free(self) -> None:
        """Give the space back."""
        (self.seen / "filler").unlink()

    def remount(self, mode: str) -> None:
        """Make the disk ``ro`` or ``rw``."""
        subprocess.run([*self.prefix, "mount", "-o", f"remount,{mode}", str(self.path)], check=True)
