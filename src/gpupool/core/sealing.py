"""Sealing: what the database holds of other people's secrets can be read only with a key that lies elsewhere.

Whoever gets a copy of the database (a backup, a disk, a support case) does not get the tokens that workloads are
given. The same text under the same name seals to the same value (AES-SIV), so an unchanged record stays unchanged.
"""

import base64
import binascii
import secrets
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gpupool.core.errors import EnvironmentProblemError, StorageError
from gpupool.core.files import ensure_private_dir, write_private

_KEY_BYTES: Final = 64
PREFIX: Final = "sealed:1:"
"""What every sealed text begins with."""


class Seal:
    """Seals and opens short texts, each under the name that it belongs to."""

    def __init__(self, key: bytes) -> None:
        """``key``: 64 random bytes."""
        self._cipher = AESSIV(key)

    @classmethod
    def load_or_make(cls, path: Path) -> Self:
        """Return the seal whose key is kept at ``path`` (base64, mode 0600); make it at first start.

        Raises EnvironmentProblemError where the file cannot be read or holds no key: a new one opens nothing sealed.
        """
        try:
            text = path.read_text()
        except FileNotFoundError:
            key = secrets.token_bytes(_KEY_BYTES)
            ensure_private_dir(path.parent)
            write_private(path, base64.b64encode(key).decode() + "\n")
            return cls(key)
        except (OSError, UnicodeDecodeError) as error:
            raise EnvironmentProblemError(
                f"The sealing key {path} cannot be read: {getattr(error, 'strerror', 'it is no text')}.",
                remedy="Mend its rights or restore it from a backup; without it the environment of workloads is lost.",
            ) from error
        try:
            return cls(base64.b64decode(text, validate=False))
        except ValueError as error:
            raise EnvironmentProblemError(
                f"The file {path} holds no sealing key.",
                remedy="Restore it from a backup; without it the environment of workloads cannot be read.",
            ) from error

    def close(self, name: str, text: str) -> str:
        """Return ``text`` sealed under ``name``."""
        # A byte in front, since nothing at all cannot be encrypted.
        sealed = self._cipher.encrypt(b"\0" + text.encode(), [name.encode()])
        return PREFIX + base64.urlsafe_b64encode(sealed).decode()

    def open(self, name: str, sealed: str) -> str:
        """Return what was sealed under ``name``; a text that never was sealed comes back as it is.

        Raises StorageError where it was sealed with another key or under another name, or was changed since.
        """
        if not sealed.startswith(PREFIX):
            return sealed
        try:
            return self._cipher.decrypt(base64.urlsafe_b64decode(sealed[len(PREFIX) :]), [name.encode()])[
                1:
            ].decode()
        except (InvalidTag, ValueError, binascii.Error) as error:
            raise StorageError(
                f"The stored value of {name} cannot be opened with this pool's sealing key.",
                remedy="Copy keys/seal.key of the state folder that this database belongs to over this one's. Where it"
                " is lost for good, start with an empty database and deploy everything anew.",
            ) from error
