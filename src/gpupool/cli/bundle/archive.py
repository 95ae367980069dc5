"""Gathering, cleaning and packing: nothing is written before every secret in it was looked for."""

import io
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from gpupool.cli.bundle import contents
from gpupool.cli.bundle.pool_view import ask_pool
from gpupool.cli.bundle.redaction import Redactor
from gpupool.cli.bundle.secrets import known_secrets
from gpupool.core.errors import ConflictError, EnvironmentProblemError, GpupoolError
from gpupool.core.home import Home

MOST_BYTES: Final = 32 * 1024 * 1024
"""Of all files together, before packing; the last log that still finds room may reach 1 MiB beyond."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Cleaned files by name, and the names of those there was no room or right for."""

    files: dict[str, bytes]
    left_out: list[str]


def gather(home: Home, environment: Mapping[str, str]) -> Bundle:
    """Return the whole bundle, secrets removed. Changes nothing."""
    pool = ask_pool(home)
    redactor = Redactor(known_secrets(home, environment))
    parts: dict[str, Callable[[], bytes]] = {
        "doctor.json": partial(contents.findings, home, environment),
        "versions.json": contents.versions,
        "settings.json": partial(contents.settings, environment),
        "processes.json": partial(contents.processes, home),
        "database.json": partial(contents.database, home),
    }
    raw = {name: _told(part) for name, part in parts.items()} | pool.files
    raw |= dict(contents.run_records(home))
    files = {name: redactor.clean(content) for name, content in raw.items()}
    left_out = _add_logs(home, redactor, files)
    return Bundle(files, left_out)


def _told(part: Callable[[], bytes]) -> bytes:
    """Return a part of the bundle, or why there is none: what is broken is what a bundle is made for."""
    try:
        return part()
    except GpupoolError as error:
        return contents.as_json({"error": error.message})
    except OSError as error:
        return contents.as_json({"error": str(error)})


def _add_logs(home: Home, redactor: Redactor, files: dict[str, bytes]) -> list[str]:
    left_out: list[str] = []
    room = MOST_BYTES - sum(map(len, files.values()))
    for name, path in contents.log_files(home):
        if room <= 0:
            left_out.append(f"{name} (the bundle is full)")
            continue
        try:
            content, shortened = contents.end_of(path)
        except OSError as error:
            left_out.append(f"{name} ({error.strerror})")
            continue
        cleaned = redactor.clean(content)
        if shortened:
            cleaned = contents.cut(cleaned)
        room -= len(cleaned)
        files[redactor.clean(name.encode(errors="replace")).decode(errors="replace")] = cleaned
    return left_out


def pack(bundle: Bundle, path: Path, now: datetime) -> int:
    """Write the bundle to a new file (mode 0600) and return its bytes.

    Raises ConflictError when the file exists, EnvironmentProblemError when it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise ConflictError(f"{path} exists.", remedy="Give another name with --output.") from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in sorted(bundle.files.items()):
                entry = tarfile.TarInfo(f"gpupool-support/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(now.timestamp())
                archive.addfile(entry, io.BytesIO(content))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritable(path, error) from error
    return path.stat().st_size


def _unwritable(path: Path, error: OSError) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"{path} cannot be written: {error.strerror}.", remedy="Give a place that can be with --output."
    )
