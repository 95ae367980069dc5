"""How `chutes-miner-cli` signs what it asks of a miner's own API, for both sides.

Source: chutes.md section 2.1 (c). The hotkey stands in both roles, and the message is ``miner:validator:nonce:X`` with
X the SHA-256 of the exact body where one is sent, else a word for the purpose; method, path, query and host are not
part of it. A nonce is the time in whole seconds, taken for half a minute.
"""

from typing import Final

from gpupool.validators.chutes.signing import NONCE, SIGNATURE, Signer, subject_of

MINER: Final = "X-Chutes-Miner"
VALIDATOR: Final = "X-Chutes-Validator"
MANAGEMENT: Final = "management"
NONCE_SECONDS: Final = 30
"""A nonce is refused when it is as many seconds old, or as many ahead."""


def management_message(address: str, nonce: str, *, body: bytes | None) -> bytes:
    """Return what the holder of ``address`` signs; ``body`` is None where the purpose is signed instead."""
    return f"{address}:{address}:{nonce}:{subject_of(body, MANAGEMENT)}".encode()


def management_headers(signer: Signer, now: float, *, body: bytes | None = None) -> dict[str, str]:
    """Return the headers of a request at ``now`` (seconds since 1970), with a ``body`` or without one."""
    nonce = str(int(now))
    signature = signer.sign(management_message(signer.address, nonce, body=body))
    return {MINER: signer.address, VALIDATOR: signer.address, NONCE: nonce, SIGNATURE: signature.hex()}
