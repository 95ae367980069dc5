"""Removing the state folder, and nothing else whatever GPUPOOL_HOME says.

Only what the layout names is removed. Links are removed as links: what they point to stays. The folder itself goes
only when it is empty by then.
"""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.core.files import open_own_folders
from gpupool.core.home import VARIABLE, Home

_REMEDY: Final = f"Name the state folder with {VARIABLE}; nothing was removed."


class NotAStateFolderError(InvalidInputError):
    """The folder is not a state folder of gpupool."""

    code = "not_a_state_folder"
    default_remedy = _REMEDY


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of a state folder."""

    gone: bool
    """The folder itself is gone."""
    stayed: list[str]
    """What is still in it."""
    links: list[str]
    """Links that were removed while what they point to stays, as ``name -> target``."""


def refuse_unfit(home: Home, *, user_home: Path | None = None, here: Path | None = None) -> None:
    """Raise NotAStateFolderError unless the folder is a state folder that may be removed.

    ``user_home`` and ``here`` (the working folder) stand in for the real ones in tests.
    """
    root = home.root
    try:
        found = os.lstat(root)
    except OSError as error:
        raise NotAStateFolderError(f"There is no state folder {root}: {error.strerror}.") from error
    if stat.S_ISLNK(found.st_mode):
        raise NotAStateFolderError(
            f"{root} is a link to {os.readlink(root)}.", remedy=f"Name the real folder with {VARIABLE}."
        )
    if not stat.S_ISDIR(found.st_mode):
        raise NotAStateFolderError(f"{root} is not a folder.")
    if found.st_uid != os.geteuid():
        raise NotAStateFolderError(f"{root} belongs to user {found.st_uid}.", remedy="Run as its owner.")
    _refuse_precious(root, user_home or _user_home(), here or Path.cwd())
    _refuse_strange(home)


def _user_home() -> Path | None:
    """Return the user's own folder; a service user may have none."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _refuse_precious(root: Path, user_home: Path | None, here: Path) -> None:
    real = root.resolve()
    for precious, what in (
        (user_home, "your home folder"),
        (here, "the folder you are in"),
        (Path("/usr"), "/usr"),
    ):
        if precious is None:
            continue
        resolved = precious.resolve()
        if resolved == real or real in resolved.parents:
            raise NotAStateFolderError(f"{root} is or holds {what}.")
    if len(real.parts) < 3:
        raise NotAStateFolderError(f"{root} is a top folder of this machine.")
    if any((real / name).exists() for name in (".git", "pyproject.toml")):
        raise NotAStateFolderError(f"{root} holds a source tree.")


def _refuse_strange(home: Home) -> None:
    """Every start makes these and ``--keep-data`` leaves them, so a folder without them was made by someone else."""
    for folder in (home.keys, home.data, home.run):
        if not folder.is_dir():
            raise NotAStateFolderError(f"{home.root} is not a state folder: it has no folder {folder.name}.")
    if home.run.is_symlink():
        raise NotAStateFolderError(f"{home.run} is a link, which the pool never makes.")
    if not home.operator_token.is_file() and not home.database.is_file():
        raise NotAStateFolderError(f"{home.root} is not a state folder: it has neither token nor database.")


def remove(home: Home, *, keep_data: bool) -> Removed:
    """Remove what the layout names, the folder of the lock last; raise EnvironmentProblemError where that fails.

    ``keep_data`` keeps database, keys, the agent's own key and memory, and the folder of the lock.
    """
    links: list[str] = []
    if keep_data:
        doomed = [home.logs, home.cache, home.agent / "runs"]
    else:
        doomed = [home.logs, home.cache, home.agent, home.keys, home.alerts, home.data, home.run]
    for path in doomed:
        _remove_one(path, links)
    if not keep_data:
        try:
            home.root.rmdir()
        except OSError:
            # Not empty: something in it is not ours. It is named to the user and stays.
            return Removed(False, sorted(os.listdir(home.root)), links)
        return Removed(True, [], links)
    return Removed(False, sorted(os.listdir(home.root)), links)


def _remove_one(path: Path, links: list[str]) -> None:
    try:
        if path.is_symlink():
            links.append(f"{path} -> {os.readlink(path)}")
            path.unlink()
        elif path.is_dir():
            open_own_folders(path)
            links.extend(_links_in(path))
            # rmtree works on open folders, so that a link put in its way meanwhile leads nowhere.
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentProblemError(
            f"{error.filename or path} cannot be removed: {error.strerror}.",
            remedy="Mend the rights of that file, then run the command again.",
        ) from error


def _links_in(top: Path) -> list[str]:
    """Return the links to folders elsewhere; a link to a file inside is nobody's loss."""
    found = []
    for folder, folders, _ in os.walk(top):
        for name in folders:
            path = Path(folder, name)
            if path.is_symlink():
                found.append(f"{path} -> {os.readlink(path)}")
    return found
