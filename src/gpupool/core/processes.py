"""Processes named so that a name never hits a stranger.

A pid is reused after its owner is gone, so a record that outlives a crash holds pid and start time together, and
every signal goes through a pidfd that was checked against both.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process for its whole life: pid and start time in clock ticks since boot, and the boot itself."""

    pid: int
    start_ticks: int
    boot_id: str

    def alive(self) -> bool:
        """Tell whether this very process still runs (a zombie does not)."""
        found = identify(self.pid)
        return found == self

    def age(self) -> float:
        """Return the seconds since its start, also when it is gone by now; setting the wall clock changes nothing.

        Only for a process of this boot.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / os.sysconf("SC_CLK_TCK")

    def signal(self, number: signal.Signals, *, group: bool = False) -> bool:
        """Send a signal to this very process, or to the group it leads; False when it is gone."""
        with self._pidfd() as descriptor:
            if descriptor is None:
                return False
            try:
                if group:
                    os.killpg(self.pid, number)
                else:
                    signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return False
            return True

    def wait_gone(self, seconds: float) -> bool:
        """Block until the process is gone, at most ``seconds``; True when it is."""
        with self._pidfd() as descriptor:
            if descriptor is None:
                return True
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            return bool(poller.poll(max(0.0, seconds) * 1000))

    @contextlib.contextmanager
    def _pidfd(self) -> Iterator[int | None]:
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            yield None
            return
        try:
            yield descriptor if self.alive() else None
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a running process, or None when there is none or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return ProcessIdentity(pid, int(fields[19]), boot_id())


def identify_self() -> ProcessIdentity:
    """Return the identity of the calling process."""
    found = identify(os.getpid())
    if found is None:
        raise ProcessLookupError(os.getpid())
    return found


def group_alive(pgid: int) -> bool:
    """Tell whether any process of the group still runs."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def marked(variable: str, value: str) -> list[ProcessIdentity]:
    """Return the running processes that were started with ``variable=value`` in their environment.

    Finds children whose parent died before it could write their pid down. Processes of other users are not seen.
    """
    entry = f"{variable}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        identity = identify(int(folder.name)) if entry in environment else None
        if identity is not None:
            found.append(identity)
    return found


def end_all(processes: Iterable[ProcessIdentity], grace_seconds: float) -> int:
    """Ask processes to end, make those end that still run after the grace, and return how many there were."""
    running = [process for process in processes if process.signal(signal.SIGTERM)]
    deadline = time.monotonic() + grace_seconds
    for process in running:
        if not process.wait_gone(deadline - time.monotonic()):
            process.signal(signal.SIGKILL)
            process.wait_gone(5.0)
    return len(running)
