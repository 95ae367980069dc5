"""The state folder: there, ours, closed to others, with the tokens that everything else asks for."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpupool.cli.checks.finding import Finding, failed, passed, warned
from gpupool.core.home import VARIABLE, Home

MOST_ENTRIES: Final = 20_000
"""So many files are looked at; a folder with more is told apart by its first ones."""


def check_folder(root: Path, uid: int) -> Finding:
    """Tell whether the state folder is a folder of this user (``uid``) with mode 0700."""
    name = "state folder"
    try:
        found = os.lstat(root)
    except FileNotFoundError:
        return _missing(name, root)
    if not stat.S_ISDIR(found.st_mode) and not root.is_dir():
        return failed(
            name, str(root), "It is not a folder.", f"Move it away, or name another one with {VARIABLE}."
        )
    found = os.stat(root)
    if found.st_uid != uid:
        return failed(
            name,
            f"{root}, owner {found.st_uid}",
            f"It belongs to user {found.st_uid}, and this command runs as user {uid}.",
            f"Run as its owner, or name another folder with {VARIABLE}.",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return failed(
            name,
            f"{root}, mode {mode:04o}",
            "Other users of this machine can look into it.",
            f"chmod 700 {root}",
        )
    return passed(name, f"{root}, mode {mode:04o}")


def _missing(name: str, root: Path) -> Finding:
    nearest = nearest_existing(root)
    if os.access(nearest, os.W_OK | os.X_OK):
        return warned(
            name,
            f"{root} does not exist",
            "The pool has never been started from it.",
            f"Start the pool (`./up`), or name the right folder with {VARIABLE}.",
        )
    return failed(
        name,
        f"{root} does not exist",
        f"It cannot be made either: {nearest} is not writable for this user.",
        f"Name a folder that can be written with {VARIABLE}.",
    )


def check_modes(home: Home, uid: int) -> Finding:
    """Tell whether every file that the pool made belongs to its user only; a secret that others can read fails."""
    name, looked, secret, other = "file rights", 0, list[Path](), list[Path]()
    for path in _own_files(home):
        looked += 1
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            continue
        # What lies in a run's folder may belong to the user that the workload runs as.
        ours = found.st_uid == uid or home.agent / "runs" in path.parents
        if stat.S_ISLNK(found.st_mode) or (ours and not found.st_mode & 0o077):
            continue
        (secret if is_secret(path, home) else other).append(path)
    measured = f"{looked} files and folders, {len(secret) + len(other)} too open"
    if secret:
        return failed(
            name,
            measured,
            f"Others can read secrets: {_some(secret)}.",
            _secret_remedy(home, secret),
        )
    if other:
        return warned(name, measured, f"Too open: {_some(other)}.", f"chmod -R go-rwx {home.root}")
    return passed(name, measured)


def _secret_remedy(home: Home, seen: list[Path]) -> str:
    """Return what to do: tokens are made anew, while the pool is lost without the keys that nothing can replace."""
    remedy = f"chmod -R go-rwx {home.root}, and give what belongs to others to the pool's user."
    tokens = [path.name for path in seen if path.suffix == ".token" and path.parent == home.keys]
    if tokens:
        remedy += f" Then remove {', '.join(tokens)} and restart, so that new ones are made."
    if any(path.suffix == ".key" for path in seen):
        remedy += (
            " Keep every .key file: without it the pool cannot read its database, or a node is a stranger."
        )
    return remedy


def check_tokens(home: Home) -> Finding:
    """Tell whether the tokens are there that every process of a started pool needs."""
    name, wanted = "tokens", (home.operator_token, home.service_token, home.join_token)
    if not home.keys.is_dir():
        return passed(name, "none yet; the first start makes them")
    bad = [path for path in wanted if not _has_content(path)]
    if bad:
        return failed(
            name,
            f"{len(wanted) - len(bad)} of {len(wanted)}",
            f"Missing, empty or unreadable: {', '.join(path.name for path in bad)}.",
            "Stop the pool and start it again; a token that is missing is made anew.",
        )
    return passed(name, f"{len(wanted)} of {len(wanted)}")


def is_secret(path: Path, home: Home) -> bool:
    """Tell whether a file of the state folder holds a secret by itself."""
    return home.keys in path.parents or path.suffix in {".key", ".token"}


def nearest_existing(path: Path) -> Path:
    """Return the path itself or its nearest parent that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def _own_files(home: Home) -> Iterator[Path]:
    """Yield what lies in the folders that we write; what a workload writes into its own folders is its affair."""
    count = 0
    for top in (home.keys, home.data, home.run, home.logs, home.agent):
        for folder, folders, files in os.walk(top):
            if Path(folder).parent == home.agent / "runs":
                folders[:] = []
            yield Path(folder)
            for file in files:
                count += 1
                if count > MOST_ENTRIES:
                    return
                yield Path(folder, file)


def _has_content(path: Path) -> bool:
    try:
        return bool(path.read_text().strip())
    except (OSError, ValueError):
        return False


def _some(paths: list[Path]) -> str:
    shown = ", ".join(map(str, paths[:3]))
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
