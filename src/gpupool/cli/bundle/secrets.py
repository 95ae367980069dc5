"""Finding the secrets of this pool, so that they can be removed from everything else.

They are what the key files hold, what this process was told in variables, and whatever people gave their workloads
in ``env``, since nobody but them knows which of those values is a password.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gpupool.cli.bundle.redaction import SHORTEST
from gpupool.core.errors import GpupoolError
from gpupool.core.files import read_json
from gpupool.core.home import Home
from gpupool.core.records import ProcessRecord
from gpupool.core.secret_names import is_secret_name

_MOST_BYTES: Final = 64 * 1024
_SHORTEST_VALUE: Final = 8
"""Of a workload's variable without a telling name; shorter values (``1``, ``debug``) are words of the log itself."""


def known_secrets(home: Home, environment: Mapping[str, str]) -> set[str]:
    """Return every secret that can be known: key files, alerts, telling variables, and the variables of workloads."""
    found = {text for path in secret_files(home) for text in _texts_of(path)}
    found |= {word.strip("'\",") for text in _texts_of(home.alerts) for word in text.split() if "://" in word}
    telling = {value for name, value in environment.items() if is_secret_name(name)}
    found |= telling | {password for value in telling if (password := _password_of(value))}
    for variables in (*_recorded(home), *_stored(home)):
        found |= set(_telling(variables))
    return {text for text in found if len(text) >= SHORTEST}


def _password_of(value: str) -> str | None:
    """Return the password in a URL, which may turn up without the rest of it."""
    try:
        return urlsplit(value).password
    except ValueError:
        return None


def secret_files(home: Home) -> Iterator[Path]:
    """Yield every file of the state folder whose content is a secret."""
    for folder, _, names in os.walk(home.keys):
        yield from (Path(folder, name) for name in names)
    for top in (home.root, home.agent):
        yield from (path for suffix in ("key", "token") for path in sorted(top.glob(f"*.{suffix}")))


def _texts_of(path: Path) -> Iterator[str]:
    """Yield a file's whole content and its lines."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode(errors="surrogateescape")
    except OSError:
        # Who cannot read a secret cannot have written it into a log either.
        return
    yield text.strip()
    yield from (line.strip() for line in text.splitlines() if len(line.strip()) >= _SHORTEST_VALUE)


def _recorded(home: Home) -> Iterator[Mapping[str, Any]]:
    for path in sorted((home.agent / "runs").glob("*/record.json")):
        try:
            value = read_json(path)
        except OSError:
            continue
        order = value.get("order") if isinstance(value, dict) else None
        variables = order.get("env") if isinstance(order, dict) else None
        if isinstance(variables, dict):
            yield variables


def _stored(home: Home) -> Iterator[Mapping[str, Any]]:
    """Yield what the database holds of the workloads' variables, opened; nothing where it cannot be read."""
    from gpupool.core.sealing import Seal
    from gpupool.store.looking import environments, untouched

    if not home.database.exists() or not home.seal_key.exists():
        return
    record = ProcessRecord.read(home.run / "control.json")
    try:
        seal = Seal.load_or_make(home.seal_key)
        with untouched(home.database, in_use=record is not None and record.process.alive()) as path:
            kept = environments(path)
        yield from ({name: seal.open(name, value) for name, value in env.items()} for env in kept)
    except GpupoolError:
        # A bundle is made when something is broken; what cannot be opened here stands in clear nowhere else either.
        return


def _telling(variables: Mapping[str, Any]) -> Iterator[str]:
    for name, value in variables.items():
        if isinstance(value, str) and (len(value) >= _SHORTEST_VALUE or is_secret_name(name)):
            yield value
