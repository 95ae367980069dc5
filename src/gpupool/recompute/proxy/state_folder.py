"""Where a proxy keeps what must outlive it, and where commands find it: one folder for each port.

``GPUPOOL_HOME`` counts where it is set. Else the folder of a service is used by whoever may write there, and a proxy
that a user starts by hand, as with the original program, keeps its state in that user's own folder. It says where.
"""

import os
import sys
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.files import ensure_private_dir
from gpupool.core.home import DEFAULT, VARIABLE

FOLDER: Final = "proxies"


def candidates() -> list[Path]:
    """Return the state folders that come into question, the best first."""
    named = os.environ.get(VARIABLE)
    if named:
        return [Path(named).absolute()]
    if sys.platform == "win32":
        # A folder at the root of a Windows disk can be read by every user.
        return [Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "gpupool"]
    own = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return [DEFAULT, own / "gpupool"]


def open_folder(port: int) -> Path:
    """Return the folder of the proxy on ``port``, made if need be, mode 0700.

    Raises EnvironmentProblemError where none of the candidates can be written.
    """
    failures = []
    for root in candidates():
        try:
            for folder in (root, root / FOLDER, root / FOLDER / str(port)):
                ensure_private_dir(folder)
        except EnvironmentProblemError as error:
            failures.append(error)
            continue
        return root / FOLDER / str(port)
    raise failures[-1]


def known_folders() -> list[Path]:
    """Return the folders of all proxies that have kept something here, by port."""
    found: list[Path] = []
    for root in candidates():
        try:
            found += [path for path in (root / FOLDER).iterdir() if path.name.isdecimal()]
        except OSError:
            continue  # none there, or those of another user
    return sorted(found, key=lambda path: int(path.name))


def remove_folder(folder: Path) -> None:
    """Remove the folder of a proxy that is never to come back; what does not go stays."""
    try:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    except OSError:
        return  # in use by somebody: a few small files stay
