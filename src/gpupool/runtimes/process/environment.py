"""The environment and command line of a workload, built from nothing.

A chute is somebody else's code: it gets what it needs, never what the agent happens to hold. What the node decides
(port, devices, folders, marks) cannot be overruled by the spec.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError
from gpupool.fleet.ports.runtime import LaunchOrder
from gpupool.runtimes.process.confinement import Confinement
from gpupool.runtimes.process.marks import marks
from gpupool.runtimes.process.records import RunFolder

_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED_THROUGH: Final = ("PYTHONPATH", "LD_LIBRARY_PATH", "TZ")
"""Where code and driver libraries are found; none of them holds a secret."""


_USER: Final = "workload"
"""Its user has a number and no account; libraries that ask for a name take it from here."""
_OURS: Final = ("python", "-m", "gpupool", "recompute", "serve")
_IDENTITY: Final = {
    "tls.pem": "GPUPOOL_RECOMPUTE_TLS_CERT",
    "tls.key": "GPUPOOL_RECOMPUTE_TLS_KEY",
    "tokens": "GPUPOOL_RECOMPUTE_TOKEN_FILE",
    "clients.pem": "GPUPOOL_RECOMPUTE_CLIENT_CA",
}
"""File in ``keys/recompute`` of the node's state folder -> the variable of our server that names it."""
_OF_OURS: Final = ("CHIAPOS_", "GPUPOOL_RECOMPUTE_")


def is_ours(order: LaunchOrder) -> bool:
    """Tell whether an order runs our own recompute server, with nothing in its environment that loads other code."""
    return order.command[: len(_OURS)] == _OURS and all(name.startswith(_OF_OURS) for name in order.env)


class LaunchFailedError(EnvironmentProblemError):
    """The workload could not be launched."""

    code = "launch_failed"
    default_remedy = "Correct the command of the workload and deploy it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is the same for every launch of a runtime."""

    runs: Path
    cache: Path
    """Holds ``models`` and compiled kernels."""
    host: str
    """Where workloads are told to listen."""
    confinement: Confinement

    @property
    def models(self) -> Path:
        """Models that the node keeps for all workloads; none of them may write here."""
        return self.cache / "models"

    def identity(self, order: LaunchOrder) -> tuple[Path, ...]:
        """Return the folder with this node's certificate, key and tokens, which only our own servers may read."""
        folder = self.confinement.protected / "keys" / "recompute"
        return (folder,) if order.tls and is_ours(order) and folder.is_dir() else ()

    def kernels(self, order: LaunchOrder, folder: RunFolder, uid: int | None) -> Path:
        """Return where a workload keeps compiled code, which whoever loads it executes.

        Ours share one folder for each user that writes it; somebody else's code gets one of its own.
        """
        if not is_ours(order):
            home, _, _ = folder.private
            return home / ".cache" / "numba"
        return self.cache / ("numba" if uid is None else f"numba-{uid}")


def build_environment(
    order: LaunchOrder,
    folder: RunFolder,
    around: Surroundings,
    port: int,
    instance_id: str,
    uid: int | None = None,
) -> dict[str, str]:
    """Return the whole environment of one launch."""
    home, work, temporary = folder.private
    offered = {
        "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "USER": _USER,
        "LOGNAME": _USER,
        "HF_HOME": str(home / ".cache" / "huggingface"),
        **{name: os.environ[name] for name in _PASSED_THROUGH if name in os.environ},
        **_identity_variables(around.identity(order)),
        **_without_cards(order),
    }
    decided = {
        "HOME": str(home),
        "PWD": str(work),
        "TMPDIR": str(temporary),
        "HOST": around.host,
        "PORT": str(port),
        "GPUPOOL_INSTANCE_ID": instance_id,
        "GPUPOOL_MODEL_CACHE": str(around.models),
        "NUMBA_CACHE_DIR": str(around.kernels(order, folder, uid)),
        "CUDA_VISIBLE_DEVICES": ",".join(order.gpu_uuids or map(str, order.gpu_indices)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **({"GPUPOOL_MODEL": order.model_ref} if order.model_ref else {}),
    }
    return {**offered, **order.env, **decided, **marks(around.runs, order.placement_id)}


def _without_cards(order: LaunchOrder) -> dict[str, str]:
    """Return what keeps our recompute server, which else uses every card it sees, off cards it has no claim on."""
    has_cards = bool(order.gpu_uuids or order.gpu_indices)
    if has_cards or not is_ours(order) or "--external" in order.command:
        return {}
    return {"CHIAPOS_MAX_GPU_DEVICES": "0"}


def _identity_variables(folders: tuple[Path, ...]) -> dict[str, str]:
    """Return what tells our server where this node keeps what it shows and whom it lets in."""
    return {
        variable: str(folder / name)
        for folder in folders
        for name, variable in _IDENTITY.items()
        if (folder / name).is_file()
    }


def build_command(
    order: LaunchOrder, environment: Mapping[str, str], host: str, port: int
) -> tuple[str, ...]:
    """Return the arguments with ``{port}`` and ``{host}`` filled in and the executable found.

    Raises LaunchFailedError where there is nothing to run or the executable is not on this machine.
    """
    if not order.command:
        what = f"the image {order.image} needs a container runtime" if order.image else "there is no command"
        raise LaunchFailedError(f"{what}.")
    filled = [part.replace("{port}", str(port)).replace("{host}", host) for part in order.command]
    if filled[0] in {"python", "python3"}:
        return sys.executable, *filled[1:]
    if "/" in filled[0]:
        return tuple(filled)
    found = shutil.which(filled[0], path=environment["PATH"])
    if found is None:
        raise LaunchFailedError(f"the executable {filled[0]!r} is not on this machine.")
    return found, *filled[1:]
