"""From what a farmer wants to the files that do it: the library, a way into the harvester's process, the sidecar's units.

Three ways in. A `.pth` file in Chia's environment reaches the harvester however it is started, and is the one to take
where it can be. A drop-in tells an existing unit of systemd. With the third, nothing of Chia's is touched and the
variables are given to a daemon that is started anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gpupool.core.errors import InvalidInputError, UnsupportedError
from gpupool.harvester import hook
from gpupool.harvester.chia_env import ChiaEnvironment
from gpupool.harvester.manifest import WantedFile
from gpupool.harvester.places import Places
from gpupool.harvester.units import DROPIN, SERVICE, SOCKET, SidecarUnit, dropin
from gpupool.harvester.variables import PRELOAD, ShimSettings


class Method(StrEnum):
    """How the library gets into the harvester's process."""

    PTH = "pth"
    SYSTEMD = "systemd"
    DAEMON = "daemon"


WORDS: Final = {
    Method.PTH: "a .pth file in Chia's environment",
    Method.SYSTEMD: "a drop-in of the harvester's systemd unit",
    Method.DAEMON: "the environment of a daemon that is started anew",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What is wanted."""

    chia: ChiaEnvironment
    chia_root: Path
    """Chia's own folder, with its configuration."""
    method: Method
    places: Places
    shim: ShimSettings
    sidecar_command: Sequence[str]
    """Program and arguments of the sidecar, without its socket."""
    unit: str | None = None
    """The harvester's own unit, for the drop-in."""
    with_units: bool = True
    """Whether systemd runs the sidecar."""

    def __post_init__(self) -> None:
        """Raise UnsupportedError or InvalidInputError where the way in can't be this one."""
        if self.method is Method.PTH and self.chia.site_packages is None:
            raise UnsupportedError(
                f"The Chia in {self.chia.root} is one frozen program (the distribution's package or the GUI): it reads"
                " no .pth file.",
                remedy="Use --method daemon or --method systemd, which were not tried with it, or run the harvester"
                " from a virtual environment (pip install chia-blockchain).",
            )
        if self.method is not Method.SYSTEMD and self.places.user is not None:
            raise InvalidInputError(
                f"The harvester is {self.places.user}'s, and only --method systemd is installed for another user.",
                remedy=f"Run this as that user: sudo -u {self.places.user} gpupool harvester install …",
            )
        if (self.method is Method.SYSTEMD) != (self.unit is not None):
            raise InvalidInputError(
                "A drop-in belongs to a unit.",
                remedy="Name the harvester's unit with --unit, such as --method systemd --unit chia-harvester.service.",
            )
        if self.unit is not None and not (self.unit.endswith(".service") and "/" not in self.unit):
            raise InvalidInputError(
                f"{self.unit!r} is no name of a service unit.", remedy="It ends with .service."
            )

    def files(self, library: bytes) -> list[WantedFile]:
        """Return every file that is wanted; ``library`` is the content of the built one."""
        found = [
            WantedFile(
                path=self.places.library,
                content=library,
                mode=0o755,
                why="the library that asks the sidecar in place of the bundled decompressor",
            )
        ]
        if self.method is Method.PTH and self.chia.site_packages is not None:
            found.append(
                WantedFile(
                    path=self.chia.site_packages / hook.NAME,
                    content=hook.path_file(self.places.library, self.shim.variables()),
                    why="loads the library in the harvester and in `chia plots check`, and nowhere else",
                )
            )
        if self.with_units:
            found += self._unit_files()
        return found

    def _unit_files(self) -> list[WantedFile]:
        places = self.places
        unit = SidecarUnit(
            command=[*self.sidecar_command, "--unix", str(places.socket)],
            socket=places.socket,
            home=places.home,
            secrets=places.folder / "sidecar.env",
            user=places.user,
            of_system=places.of_system,
        )
        found = [
            WantedFile(path=places.units / SERVICE, content=unit.service(), why="runs the sidecar"),
            WantedFile(
                path=places.units / SOCKET,
                content=unit.socket_unit(),
                why="keeps its socket while it restarts",
            ),
        ]
        if self.unit is not None:
            found.append(
                WantedFile(
                    path=places.units / f"{self.unit}.d" / DROPIN,
                    content=dropin(self.environment()),
                    why=f"gives {self.unit} the library",
                )
            )
        return found

    def environment(self) -> dict[str, str]:
        """Return the variables that put the library into a process started with them."""
        return {PRELOAD: str(self.places.library)} | self.shim.variables()

    def about(self) -> dict[str, Any]:
        """Return what later commands need to know."""
        return {
            "method": self.method.value,
            "chia": str(self.chia.root),
            "chia_root": str(self.chia_root),
            "unit": self.unit,
            "units": str(self.places.units) if self.with_units else None,
            "of_system": self.places.of_system,
            "user": self.places.user,
            "library": str(self.places.library),
            "socket": str(self.places.socket),
            "shim_log": str(self.places.shim_log),
            "home": str(self.places.home),
            "sidecar_command": list(self.sidecar_command),
            "environment": self.environment(),
        }

    def sidecar_words(self) -> str:
        """Return whom the sidecar asks and who starts it, for the plan."""
        asked = " ".join(self.sidecar_command[self.sidecar_command.index("proxy") + 1 :])
        who = "systemd runs it" if self.with_units else "`gpupool harvester run` starts it, and nobody again"
        return f"{asked} ({who.replace('`', '')})"

    def next_steps(self, *, again: bool = False) -> list[str]:
        """Return what is left to do, as commands; ``again`` where a sidecar may run as it was installed before."""
        steps = []
        systemctl = "systemctl" if self.places.of_system else "systemctl --user"
        if self.with_units:
            steps.append(f"{systemctl} daemon-reload")
            steps.append(f"{systemctl} enable --now {SOCKET} {SERVICE}")
            if again:
                steps.append(f"{systemctl} restart {SERVICE}")
            if not self.places.of_system:
                steps.append("loginctl enable-linger")
        else:
            steps.append("gpupool harvester run")
        steps += self._restart(systemctl)
        return [*steps, "gpupool harvester status"]

    def _restart(self, systemctl: str) -> list[str]:
        chia = self.chia.programs / "chia"
        if self.method is Method.PTH:
            return [f"{chia} start harvester -r"]
        if self.method is Method.SYSTEMD:
            return [f"{systemctl} restart {self.unit}"]
        return [f"{chia} stop -d all", f"gpupool harvester run -- {chia} start harvester"]
