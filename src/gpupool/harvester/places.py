"""Where everything of an installation lies, for whom it is made: a user's own harvester, or another user's by root.

The sidecar's socket opens to one user only, so sidecar and harvester run as the same one. Whoever runs the harvester
can install everything for himself. Only root can change a system's unit, and may do so for the unit's user.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.core.errors import ForbiddenError
from gpupool.core.home import DEFAULT, VARIABLE

LIBRARY: Final = "libgpupool_harvester.so"
SYSTEM_UNITS: Final = Path("/etc/systemd/system")
RUNNING_SYSTEMD: Final = Path("/run/systemd/system")
"""Exists where systemd is this machine's init."""
_SHARED_LIBRARY: Final = Path("/usr/local/lib/gpupool")
_SHARED_HOME: Final = Path("/var/lib/gpupool-sidecar")
_SHARED_SOCKET: Final = Path("/run/gpupool-sidecar/sidecar.sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Paths of one installation."""

    folder: Path
    """The list of what was installed, and what a run leaves behind."""
    library: Path
    socket: Path
    shim_log: Path
    home: Path
    """State folder of the sidecar."""
    units: Path
    """Where unit files go."""
    user: str | None = None
    """Whose harvester it is, where that is not the caller."""
    of_system: bool = False
    """Whether the units are the system's."""

    @property
    def sidecar_log(self) -> Path:
        """What a sidecar says that `gpupool harvester run` has started."""
        return self.folder / "sidecar.log"

    @property
    def sidecar_record(self) -> Path:
        """Who that sidecar is."""
        return self.folder / "sidecar.json"

    def leavings(self) -> list[Path]:
        """Return what a run may leave in the folder, for `remove`."""
        logs = [self.shim_log, self.shim_log.with_name(f"{self.shim_log.name}.1"), self.sidecar_log]
        return [*logs, self.sidecar_record, self.socket]


def state_home() -> Path:
    """Return the state folder that holds the installation's own: as named, else root's, else the user's."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).absolute()
    if os.geteuid() == 0:
        return DEFAULT
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gpupool"


def own_places(units: Path | None = None, socket: Path | None = None) -> Places:
    """Return the places for a harvester that the caller runs; ``units`` and ``socket`` where they are to be elsewhere."""
    home = state_home()
    folder = home / "harvester"
    of_system = os.geteuid() == 0
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Places(
        folder=folder,
        library=folder / LIBRARY,
        socket=socket or folder / "sidecar.sock",
        shim_log=folder / "shim.log",
        home=home,
        units=units or (SYSTEM_UNITS if of_system else configuration / "systemd" / "user"),
        of_system=of_system,
    )


def places_for(owner: int, units: Path | None = None, socket: Path | None = None) -> Places:
    """Return the places for the harvester of the user with id ``owner``.

    Raises ForbiddenError where that is somebody else and the caller is not root.
    """
    if owner == os.geteuid():
        return own_places(units, socket)
    user = user_name(owner)
    if os.geteuid() != 0:
        raise ForbiddenError(
            f"This Chia belongs to {user}, and the sidecar's socket opens to one user only.",
            remedy=f"Run this as that user: sudo -u {user} gpupool harvester install …",
        )
    return Places(
        folder=state_home() / "harvester",
        library=_SHARED_LIBRARY / LIBRARY,
        socket=socket or _SHARED_SOCKET,
        shim_log=_SHARED_HOME / "shim.log",
        home=_SHARED_HOME,
        units=units or SYSTEM_UNITS,
        user=user,
        of_system=True,
    )


def user_name(number: int) -> str:
    """Return the name of a user, or the number where it has none."""
    import pwd  # not on Windows, where this module is loaded before that is told

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
