"""What the installer has put on this machine: written down first, changed in whole files, taken back exactly.

A file that lies where we want ours and is not ours is never touched; neither is one of ours that somebody has changed
since. The list is on disk before the first file is, so that a crash leaves nothing that `remove` does not know.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from gpupool.core import failpoints
from gpupool.core.errors import ConflictError, EnvironmentProblemError
from gpupool.core.files import ensure_private_dir, read_json, write_private_json

FILE: Final = "manifest.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFile:
    """A file as it is to be."""

    path: Path
    content: bytes
    why: str
    """For people: what it is for."""
    mode: int = 0o644

    @property
    def digest(self) -> str:
        """SHA-256 of its content."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a plan: ``write``, ``replace``, ``keep`` or ``remove`` a file."""

    action: str
    path: Path
    why: str


@dataclass(slots=True)
class Manifest:
    """The files that are ours, and what was installed."""

    folder: Path
    """Where the list itself lies."""
    files: dict[Path, list[str]] = field(default_factory=dict)
    """Path -> digests that it may have: of the last write, and of one that a crash may have cut short."""
    folders: list[Path] = field(default_factory=list)
    """Folders that were made for them, outermost first."""
    about: dict[str, Any] = field(default_factory=dict)
    """What was asked for, for `status`, `env` and the next `install`."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what ``folder`` holds; an empty one where it holds none. Raises ConflictError where it is damaged."""
        try:
            kept: Any = read_json(folder / FILE)
        except OSError as error:
            raise EnvironmentProblemError(
                f"The list of what was installed, {folder / FILE}, cannot be read: {error.strerror}.",
                remedy="Run this as the user that installed it, with the same GPUPOOL_HOME.",
            ) from error
        if kept is None and not (folder / FILE).exists():
            return cls(folder)
        try:
            return cls(
                folder,
                {Path(name): [str(one) for one in digests] for name, digests in kept["files"].items()},
                [Path(name) for name in kept["folders"]],
                dict(kept["about"]),
            )
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ConflictError(
                f"The list of what was installed, {folder / FILE}, is damaged.",
                remedy=f"Remove the files that you find in {folder} and the .pth file in Chia's environment by hand.",
            ) from error

    @property
    def is_empty(self) -> bool:
        """Whether nothing of ours is here."""
        return not self.files

    def write(self) -> None:
        """Put the list on disk."""
        kept = {
            "version": _VERSION,
            "files": {str(path): digests for path, digests in self.files.items()},
            "folders": list(map(str, self.folders)),
            "about": self.about,
        }
        write_private_json(self.folder / FILE, kept)

    def plan(self, wanted: Iterable[WantedFile]) -> list[Step]:
        """Return what it takes to have just ``wanted``; raise ConflictError where somebody else's file is in the way."""
        wanted = list(wanted)
        strange = [one.path for one in wanted if self._is_strange(one.path, one)]
        stale = [path for path in self.files if path not in {one.path for one in wanted}]
        changed = [path for path in stale if self._is_strange(path)]
        if strange or changed:
            raise _conflict([*strange, *changed])
        steps = [Step(self._action(one), one.path, one.why) for one in wanted]
        return steps + [Step("remove", path, "not needed any more") for path in stale if _digest(path)]

    def _action(self, wanted: WantedFile) -> str:
        found = _digest(wanted.path)
        if found is None:
            return "write"
        same = found == wanted.digest and wanted.path.stat().st_mode & 0o777 == wanted.mode
        return "keep" if same and wanted.path in self.files else "replace"

    def _is_strange(self, path: Path, wanted: WantedFile | None = None) -> bool:
        """Tell whether there is something at ``path`` that is neither ours nor what we want."""
        found = _digest(path)
        if found is None:
            return path.is_symlink() or path.is_dir()
        mine = [*self.files.get(path, []), *([wanted.digest] if wanted is not None else [])]
        return found not in mine

    def carry_out(self, wanted: Iterable[WantedFile], about: dict[str, Any]) -> list[Step]:
        """Make it so, and return what was done; raises as `plan`, and EnvironmentProblemError where a file can't be."""
        wanted = list(wanted)
        steps = self.plan(wanted)
        changed = {step.path: step.action for step in steps if step.action != "keep"}
        if not changed and about == self.about:
            return steps
        for one in wanted:
            known = self.files.get(one.path, [])
            self.files[one.path] = list(dict.fromkeys([*known, one.digest]))
        self._note_folders(wanted)
        self.about = about
        ensure_private_dir(self.folder)
        self.write()
        for one in wanted:
            if one.path in changed:
                self._make_folders(one.path)
                _write(one)
        failpoints.reach("harvester.written")
        self._drop(path for path, action in changed.items() if action == "remove")
        self.files = {one.path: [one.digest] for one in wanted}
        self.write()
        return steps

    def _note_folders(self, wanted: Iterable[WantedFile]) -> None:
        for one in wanted:
            missing = [folder for folder in one.path.parents if not folder.exists()]
            self.folders += [folder for folder in reversed(missing) if folder not in self.folders]

    def check_unchanged(self) -> None:
        """Raise ConflictError where somebody has changed a file of ours."""
        changed = [path for path in self.files if self._is_strange(path)]
        if changed:
            raise _conflict(changed)

    def _make_folders(self, path: Path) -> None:
        """Make the folders of a file, open to whoever is to read it, whatever this process' mask of modes is."""
        for folder in [folder for folder in reversed(path.parents) if not folder.exists()]:
            try:
                folder.mkdir()
                folder.chmod(0o755)
            except OSError as error:
                raise _refused(folder, error) from error

    def take_back(self, paths: Iterable[Path]) -> list[Path]:
        """Remove those of ``paths`` that are ours, and return the ones that were there.

        The list itself stays until `forget`. Raises ConflictError, with nothing removed, where one was changed.
        """
        self.check_unchanged()
        ours = [path for path in paths if path in self.files]
        there = [path for path in ours if _digest(path) is not None]
        self._drop(there)
        for path in ours:
            del self.files[path]
        self.write()
        return there

    def forget(self) -> None:
        """Remove the list, and the folders that are empty now."""
        (self.folder / FILE).unlink(missing_ok=True)
        for folder in [*reversed(self.folders), self.folder]:
            try:
                folder.rmdir()
            except OSError:
                continue  # somebody else has put something there
        self.folders = []

    @staticmethod
    def _drop(paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise EnvironmentProblemError(
                    f"{path} cannot be removed: {error.strerror}.",
                    remedy="Run this as the user that installed it.",
                ) from error


def _digest(path: Path) -> str | None:
    """Return the SHA-256 of a plain file; None where there is none."""
    try:
        if path.is_symlink() or not path.is_file():
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise EnvironmentProblemError(
            f"{path} cannot be read: {error.strerror}.", remedy="Run this as the user that installed it."
        ) from error


def _write(wanted: WantedFile) -> None:
    temporary = wanted.path.with_name(f".{wanted.path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(wanted.content)
                file.flush()
                os.fchmod(file.fileno(), wanted.mode)
                os.fsync(file.fileno())
            os.replace(temporary, wanted.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _refused(wanted.path, error) from error


def _refused(path: Path, error: OSError) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"{path} cannot be written: {error.strerror}.",
        remedy="Run this as the user whose Chia it is (as root for a system's units), and check the disk's space.",
    )


def _conflict(paths: list[Path]) -> ConflictError:
    named = ", ".join(map(str, paths[:5])) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    return ConflictError(
        f"Somebody else has written or changed {named}. Nothing was changed.",
        remedy="Look at what is there; move it away or delete it, then run this again.",
    )


def as_json(steps: Iterable[Step]) -> list[dict[str, str]]:
    """Return steps for scripts."""
    return [{"action": step.action, "path": str(step.path), "why": step.why} for step in steps]
