"""The warden: outlives ``up`` by a moment, to end everything when ``up`` itself is killed.

``up`` cannot clean up after a SIGKILL, and its children must not stay behind. The warden waits on the pidfd of
``up``, in a session of its own that no terminal signal reaches. An orderly stop ends the warden before it acts.
"""

import signal
import subprocess
import sys
from pathlib import Path

from gpupool.cli.up.leftovers import end_leftovers
from gpupool.core.home import Home
from gpupool.core.processes import ProcessIdentity, boot_id

_LONG = 86_400.0


def start_warden(home: Home, up: ProcessIdentity) -> subprocess.Popen[bytes]:
    """Start a warden for ``up`` and return its process."""
    log = (home.logs / "warden.log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(home.root), str(up.pid), str(up.start_ticks)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def main() -> None:
    """Wait until ``up`` is gone, then end whatever it left: ``warden HOME PID START_TICKS``."""
    home, pid, ticks = Home(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    up = ProcessIdentity(pid, ticks, boot_id())
    while not up.wait_gone(_LONG):
        pass
    ended = end_leftovers(home)
    sys.stdout.write(f"up (pid {pid}) died; ended {ended} processes\n")


if __name__ == "__main__":
    main()
