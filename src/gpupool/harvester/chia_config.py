"""What the harvester's own configuration says about compressed plots. Read, never written: the file is Chia's."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError, NotFoundError

MOST_BYTES: Final = 4 * 1024 * 1024
VARIABLE: Final = "CHIA_ROOT"


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvesterConfig:
    """The harvester's section, with Chia's defaults where it says nothing."""

    path: Path
    owner: int
    """User id of whom the file is."""
    parallel_decompressor_count: int = 0
    """Look-ups at once; 0 refuses compressed plots."""
    decompressor_timeout: int = 20
    """Seconds that a look-up waits for its turn."""
    max_compression_level_allowed: int = 7
    use_gpu_harvesting: bool = False
    enforce_gpu_index: bool = False
    num_threads: int = 30
    """Plots looked at at once."""


def chia_root(given: Path | None) -> Path:
    """Return the folder of Chia's configuration and logs: as given, else by its variable, else its default."""
    named = os.environ.get(VARIABLE)
    return given or (Path(named) if named else Path.home() / ".chia" / "mainnet")


def read_config(root: Path) -> HarvesterConfig:
    """Return what ``root``'s configuration says of the harvester.

    Raises NotFoundError where there is none, EnvironmentProblemError where it can't be read, InvalidInputError where
    it is none.
    """
    path = root / "config" / "config.yaml"
    try:
        owner = path.stat().st_uid
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no configuration of Chia at {path}.",
            remedy="Name Chia's folder with --chia-root, or run `chia init` as the harvester's user first.",
        ) from error
    except OSError as error:
        raise EnvironmentProblemError(
            f"Chia's configuration {path} cannot be read: {error.strerror}.",
            remedy="Run this as the harvester's user.",
        ) from error
    if len(text) > MOST_BYTES:
        raise InvalidInputError(f"Chia's configuration {path} is larger than {MOST_BYTES} bytes.")
    try:
        whole = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"Chia's configuration {path} is no valid YAML.") from error
    section = whole.get("harvester") if isinstance(whole, dict) else None
    if not isinstance(section, dict):
        raise InvalidInputError(f"Chia's configuration {path} has no section for a harvester.")
    return HarvesterConfig(path=path, owner=owner, **_known(section, path))


def _known(section: dict[str, Any], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in HarvesterConfig.__annotations__.items():
        if kind in {int, bool} and name != "owner" and section.get(name) is not None:
            value = section[name]
            if not isinstance(value, (int, bool)):
                raise InvalidInputError(f"harvester.{name} in {path} is {value!r}, which is no number.")
            found[name] = kind(value)
    return found
