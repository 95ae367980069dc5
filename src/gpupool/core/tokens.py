"""Bearer tokens on disk. Apart from `core.keys`, so that who only needs a token does not load a crypto library."""

import hmac
import secrets
from pathlib import Path

from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.files import ensure_private_dir, remove_unfinished, write_private


def load_or_make_token(path: Path) -> str:
    """Return the bearer token kept at ``path``; make one (256 bits, mode 0600) at first start.

    Raises EnvironmentProblemError where what lies there cannot be read or is no text.
    """
    try:
        token = path.read_text().strip()
    except FileNotFoundError:
        token = ""
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentProblemError(
            f"The token file {path} cannot be read: {getattr(error, 'strerror', 'it is no text')}.",
            remedy="Mend its rights, or move it away and start again: a new one is made.",
        ) from error
    if not token:
        token = secrets.token_urlsafe(32)
        ensure_private_dir(path.parent)
        remove_unfinished(path)
        write_private(path, token + "\n")
    return token


def same_secret(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())
