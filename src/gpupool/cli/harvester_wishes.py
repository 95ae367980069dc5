"""From the options of `gpupool harvester install` to an installation; what is not said stays as it was installed."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError

if TYPE_CHECKING:
    from gpupool.harvester.chia_env import ChiaEnvironment
    from gpupool.harvester.places import Places
    from gpupool.harvester.plan import Installation, Method


SYSTEM: Final[str] = sys.platform
_ALERT: Final = "--alert-command"


def refuse_other_systems() -> None:
    """Raise EnvironmentProblemError on systems where the library can't be put in front of Chia's own."""
    if SYSTEM != "linux":
        raise EnvironmentProblemError(
            "Stock Chia on Windows and macOS cannot use the pool yet: the library exists for Linux only.",
            remedy="Run the harvester on Linux, or use Gigahorse plots, whose client can ask a pool from Windows too.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options as given."""

    servers: list[str] | None
    nodes_file: Path | None
    control: str | None
    token_file: Path | None
    method: str
    unit: str | None
    fallback: str
    timeout_ms: int
    alert_command: Path | None
    keep_units: bool
    """Whether unit files are wanted even where systemd does not run."""

    def installation(
        self, chia: "ChiaEnvironment", chia_root: Path, places: "Places", before: dict[str, Any]
    ) -> "Installation":
        """Return what they amount to; ``before`` is what was installed. Raises InvalidInputError for a bad one."""
        from gpupool.harvester.places import RUNNING_SYSTEMD
        from gpupool.harvester.plan import Installation
        from gpupool.harvester.variables import Fallback, ShimSettings

        method = self._method()
        try:
            fallback = Fallback(self.fallback)
        except ValueError as error:
            raise InvalidInputError(
                f"{self.fallback!r} is no way to fall back.", remedy="Use --fallback off, away or always."
            ) from error
        return Installation(
            chia=chia,
            chia_root=chia_root,
            method=method,
            places=places,
            shim=ShimSettings(
                socket=places.socket, log=places.shim_log, fallback=fallback, timeout_ms=self.timeout_ms
            ),
            sidecar_command=self._command(before),
            unit=self.unit,
            with_units=self.keep_units or self.unit is not None or RUNNING_SYSTEMD.is_dir(),
        )

    def _method(self) -> "Method":
        from gpupool.harvester.plan import Method

        try:
            return Method(self.method)
        except ValueError as error:
            raise InvalidInputError(
                f"{self.method!r} is no way into the harvester.",
                remedy="Use --method pth, systemd or daemon.",
            ) from error

    def _command(self, before: dict[str, Any]) -> list[str]:
        """Return the sidecar's program, its servers, and who is told when something is wrong."""
        words = [str(word) for word in before.get("sidecar_command", [])]
        alert = [_ALERT, str(self.alert_command.absolute())] if self.alert_command else []
        if _ALERT in words:
            at = words.index(_ALERT)
            alert = alert or words[at : at + 2]
            words = words[:at] + words[at + 2 :]
        asked = self._asked()
        if asked:
            return [sys.executable, "-P", "-m", "gpupool", "recompute", "proxy", *asked, *alert]
        if words:
            return [*words, *alert]
        raise InvalidInputError(
            "The sidecar has no servers to ask.",
            remedy="Name them: --servers HOST[:PORT],… (or --nodes-file, or --control).",
        )

    def _asked(self) -> list[str]:
        """Return the servers that the options name, as the proxy takes them."""
        from gpupool.recompute.proxy.sources import read_nodes_file, wishes_of_arguments

        given: list[str] = []
        for server in self.servers or []:
            wishes_of_arguments((server,))
            given += ["-n", server]
        if self.nodes_file is not None:
            read_nodes_file(self.nodes_file)
            given += ["--nodes-file", str(self.nodes_file.absolute())]
        if self.control is not None:
            given += ["--control", self.control]
        if self.token_file is not None:
            given += ["--token-file", str(self.token_file.absolute())]
        return given
