"""A chute's file for the embedded market: YAML, with the code in it or beside it."""

from pathlib import Path
from typing import Any, Final

import yaml

from gpupool.core.errors import InvalidInputError

MOST_BYTES: Final = 1024 * 1024


def read_chute(path: Path) -> dict[str, Any]:
    """Return the chute in a file; ``code_file`` in it names the file with its code.

    Raises InvalidInputError where it cannot be read or is no mapping; the market says what is wrong in it.
    """
    try:
        text = path.read_bytes()[: MOST_BYTES + 1]
        found = yaml.safe_load(text) if len(text) <= MOST_BYTES else None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} is no YAML: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"{path} is no chute: it must be a mapping of at most {MOST_BYTES} bytes.")
    chute = {str(key): value for key, value in found.items()}
    beside = chute.pop("code_file", None)
    if beside is not None:
        if "code" in chute:
            raise InvalidInputError(f"{path} gives both code and code_file; give one.")
        code = path.parent / str(beside)
        try:
            chute["code"] = code.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"The code {code} cannot be read: {error}.") from error
        chute.setdefault("filename", code.name)
    return chute
