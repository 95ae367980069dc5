"""How the miner's requests to a validator are signed: its hotkey, the time, and what the request is about.

Source: chutes.md section 2.1 (a). The message is ``hotkey:nonce:X`` with X the SHA-256 of the exact body where one is
sent, else a word for the purpose; path, query and host are not part of it. A nonce is the time in whole seconds, taken
for ten minutes.
"""

import hashlib
from typing import Final, Protocol

NONCE_SECONDS: Final = 600
HOTKEY: Final = "X-Chutes-Hotkey"
NONCE: Final = "X-Chutes-Nonce"
SIGNATURE: Final = "X-Chutes-Signature"
MINER: Final = "miner"
LAUNCH: Final = "launch"
INSTANCES: Final = "instances"
NODES: Final = "nodes"
GRAVAL: Final = "graval"
REGISTRY: Final = "registry"
SOCKETS: Final = "sockets"


class Signer(Protocol):
    """Whoever holds a hotkey: a file of this machine, or a service that signs for it."""

    @property
    def address(self) -> str:
        """The public half, in the SS58 format 42."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the sr25519 signature, 64 bytes."""
        ...


def subject_of(body: bytes | None, purpose: str | None) -> str:
    """Return what a request is about: its body, or the word for its purpose; ValueError without either."""
    if body is not None:
        return hashlib.sha256(body).hexdigest()
    if purpose is None:
        raise ValueError("a request without a body is signed for a purpose")
    return purpose


def signed_headers(
    signer: Signer, now: float, *, body: bytes | None = None, purpose: str | None = None
) -> dict[str, str]:
    """Return the three headers of a request at ``now`` (seconds since 1970) that sends ``body``, or has a ``purpose``."""
    nonce = str(int(now))
    message = f"{signer.address}:{nonce}:{subject_of(body, purpose)}"
    return {HOTKEY: signer.address, NONCE: nonce, SIGNATURE: signer.sign(message.encode()).hex()}
