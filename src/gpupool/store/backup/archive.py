"""The file of a backup: a ZIP with ``tables/NAME.jsonl``, ``keys/NAME``, ``alerts.yaml``, and last a manifest.

Every part is checked against its sum in the manifest before anything is restored, so that a cut or damaged file is
refused whole.
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import AsyncIterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from gpupool import __version__
from gpupool.core.errors import EnvironmentProblemError, StorageError
from gpupool.store.backup.appearing import appearing

FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_MOST_LINE: Final = 64 * 2**20
_ALERTS: Final = "alerts.yaml"
_MOST_SMALL: Final = 1 << 20
"""Bytes of a manifest, a key or the alerts."""
_KEY_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_CHUNK: Final = 1 << 20


class ArchiveWriter:
    """Takes the parts of a backup; see `writing`."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._sums: dict[str, str] = {}
        self._rows: dict[str, int] = {}

    async def table(self, name: str, rows: AsyncIterable[Mapping[str, Any]]) -> int:
        """Write the rows of a table and return their number."""
        number, total = 0, hashlib.sha256()
        with self._file.open(f"tables/{name}.jsonl", "w", force_zip64=True) as part:
            async for row in rows:
                line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
                total.update(line)
                part.write(line)
                number += 1
        self._sums[f"tables/{name}.jsonl"] = total.hexdigest()
        self._rows[name] = number
        return number

    def key(self, name: str, content: bytes) -> None:
        """Write a key."""
        self._small(f"keys/{name}", content)

    def alerts(self, content: bytes) -> None:
        """Write whom to tell when something dies."""
        self._small(_ALERTS, content)

    def _small(self, name: str, content: bytes) -> None:
        self._file.writestr(name, content)
        self._sums[name] = hashlib.sha256(content).hexdigest()

    def finish(self, revision: str) -> None:
        """Write the manifest, after which the backup is whole."""
        manifest = {
            "format": FORMAT,
            "gpupool": __version__,
            "made_at": datetime.now(UTC).isoformat(),
            "revision": revision,
            "rows": self._rows,
            "sha256": self._sums,
        }
        self._file.writestr(_MANIFEST, json.dumps(manifest, indent=1))


@contextmanager
def writing(path: Path) -> Iterator[ArchiveWriter]:
    """Write a backup that appears at ``path``, mode 0600 and synced, when the block ends well, and not at all otherwise.

    Raises EnvironmentProblemError where the file cannot be written, or is there already.
    """
    if path.exists():
        raise EnvironmentProblemError(f"{path} is there already.", remedy="Give a name that is free.")
    try:
        with (
            appearing(path) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive,
        ):
            yield ArchiveWriter(archive)
    except OSError as error:
        raise EnvironmentProblemError(
            f"The backup {path} cannot be written: {error.strerror}.",
            remedy="Check rights and free space of that disk.",
        ) from error


class Archive:
    """A backup that has been checked from end to end; see `reading`."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path, self._file = path, file
        manifest = json.loads(self._small(_MANIFEST))
        if manifest["format"] != FORMAT:
            raise StorageError(
                f"{path} is of a later kind ({manifest['format']}) than this gpupool reads.",
                remedy="Restore it with the gpupool that made it, or a later one.",
            )
        self.revision = str(manifest["revision"])
        """Schema of its tables."""
        self.made_at = str(manifest["made_at"])
        self.made_by = str(manifest["gpupool"])
        self.rows: dict[str, int] = {str(name): int(rows) for name, rows in manifest["rows"].items()}
        """Number of rows by table."""
        for name, wanted in manifest["sha256"].items():
            if self._sum(str(name)) != wanted:
                raise _damaged(path, f"{name} is not what was written")
        if not all(f"tables/{name}.jsonl" in manifest["sha256"] for name in self.rows):
            raise _damaged(path, "a table has no sum")
        names = [name.removeprefix("keys/") for name in manifest["sha256"] if name.startswith("keys/")]
        if not all(_KEY_NAME.fullmatch(name) for name in names):
            raise _damaged(path, "a key has a name that no key has")
        self.keys: dict[str, bytes] = {name: self._small(f"keys/{name}") for name in names}
        """Content by name."""
        self.alerts = self._small(_ALERTS) if _ALERTS in manifest["sha256"] else None
        """Whom to tell when something dies, as its file says it; None where there was no such file."""

    def table(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table."""
        with self._file.open(f"tables/{name}.jsonl") as part:
            while line := part.readline(_MOST_LINE):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise _damaged(self.path, f"a row of {name} cannot be read") from error
                if not isinstance(row, dict):
                    raise _damaged(self.path, f"a row of {name} is none")
                yield row

    def _small(self, name: str) -> bytes:
        with self._file.open(name) as part:
            content = part.read(_MOST_SMALL + 1)
        if len(content) > _MOST_SMALL:
            raise _damaged(self.path, f"{name} is larger than it can be")
        return content

    def _sum(self, name: str) -> str:
        total = hashlib.sha256()
        with self._file.open(name) as part:
            while chunk := part.read(_CHUNK):
                total.update(chunk)
        return total.hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[Archive]:
    """Open a backup and check it; StorageError where it is none, cut off, damaged or of a later kind."""
    with _opened(path) as file:
        try:
            archive = zipfile.ZipFile(file)
            checked = Archive(path, archive)
        except (
            zipfile.BadZipFile,
            zlib.error,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            EOFError,
            # Beyond the range of numbers, nested too deep, encrypted, packed in a way that is not known here.
            OverflowError,
            RuntimeError,
        ) as error:
            raise _damaged(path, "it is no backup of gpupool, or cut off") from error
        with archive:
            yield checked


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise StorageError(
            f"The backup {path} cannot be read: {error.strerror}.", remedy="Check the name and your rights."
        ) from error
    with file:
        yield file


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} cannot be restored: {why}. Nothing was changed.",
        remedy="Take another backup, or copy this one anew from where it is kept.",
    )
