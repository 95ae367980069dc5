"""Keys and signatures: Ed25519 signatures over whole requests (bearer tokens: `core.tokens`).

A signed request covers method, path with query, SHA-256 of the body, Unix time and a nonce, joined by newlines.
The receiver checks the signature, that the time is within `MAX_SKEW_SECONDS`, and that the nonce is new.
"""

import base64
import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gpupool.core.errors import EnvironmentProblemError, UnauthorizedError
from gpupool.core.files import ensure_private_dir, remove_unfinished, write_private

MAX_SKEW_SECONDS: Final = 300
HEADER_NODE: Final = "X-Gpupool-Node"
HEADER_TIME: Final = "X-Gpupool-Time"
HEADER_NONCE: Final = "X-Gpupool-Nonce"
HEADER_SIGNATURE: Final = "X-Gpupool-Signature"


def canonical_request(method: str, target: str, body: bytes, time_text: str, nonce: str) -> bytes:
    """Return the bytes that are signed; ``target`` is the path with its query as sent."""
    digest = hashlib.sha256(body).hexdigest()
    return f"{method.upper()}\n{target}\n{digest}\n{time_text}\n{nonce}".encode()


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A node's private Ed25519 key."""

    private: Ed25519PrivateKey

    @classmethod
    def load_or_make(cls, path: Path) -> "SigningKey":
        """Return the key kept at ``path`` (raw 32 bytes, base64, mode 0600); make it at first start.

        Raises EnvironmentProblemError where the file holds none or cannot be read.
        """
        try:
            raw = base64.b64decode(path.read_text())
        except FileNotFoundError:
            key = Ed25519PrivateKey.generate()
            ensure_private_dir(path.parent)
            remove_unfinished(path)
            write_private(path, base64.b64encode(key.private_bytes_raw()).decode() + "\n")
            return cls(key)
        except (OSError, ValueError) as error:
            raise _no_key(path, "cannot be read") from error
        try:
            return cls(Ed25519PrivateKey.from_private_bytes(raw))
        except ValueError as error:
            raise _no_key(path, "holds no key") from error

    @property
    def public_text(self) -> str:
        """The public half, base64 of 32 bytes."""
        return base64.b64encode(self.private.public_key().public_bytes_raw()).decode()

    def headers(self, node: str, method: str, target: str, body: bytes, unix_time: int) -> dict[str, str]:
        """Return the four headers that sign one request."""
        nonce, stamp = secrets.token_hex(16), str(unix_time)
        signature = self.private.sign(canonical_request(method, target, body, stamp, nonce))
        return {
            HEADER_NODE: node,
            HEADER_TIME: stamp,
            HEADER_NONCE: nonce,
            HEADER_SIGNATURE: base64.b64encode(signature).decode(),
        }


def _no_key(path: Path, what: str) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"The key file {path} {what}.",
        remedy="Mend its rights or bring it back from a backup; move it away only to join as a new node.",
    )


def verify_signature(public_text: str, signature_text: str, message: bytes) -> None:
    """Raise UnauthorizedError unless ``signature_text`` signs ``message`` under ``public_text`` (both base64)."""
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_text, validate=True))
        public.verify(base64.b64decode(signature_text, validate=True), message)
    except (InvalidSignature, ValueError) as error:
        raise UnauthorizedError("The signature of the request is not valid.") from error
