"""Trust in one certificate, named by its fingerprint: for servers that sign their own and farms without an authority.

OpenSSL checks chains and names, not fingerprints. The check is made as part of the handshake, so that whoever connects,
through whichever library, has said nothing before it, no token above all.
"""

import hashlib
import re
import ssl
from typing import Any, Final, Self, cast

from gpupool.core.errors import InvalidInputError
from gpupool.core.tokens import same_secret
from gpupool.recompute.tls_words import PinMismatchError

MARK: Final = "sha256:"
_PIN: Final = re.compile(r"sha256:((?:[0-9a-fA-F]{2}:?){32})")


def pin_of(text: str) -> bytes:
    """Return the SHA-256 in ``sha256:HEX``, with or without colons; raise InvalidInputError where it is none."""
    match = _PIN.fullmatch(text)
    if match is None:
        raise InvalidInputError(
            f"{text[:80]!r} is no fingerprint.",
            remedy="Write sha256: and the 64 hexadecimal digits that `openssl x509 -noout -fingerprint -sha256 -in "
            "FILE` prints.",
        )
    return bytes.fromhex(match[1].replace(":", ""))


class _PinnedObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        """Shake hands; raise PinMismatchError where the other side is not the pinned one."""
        super().do_handshake()
        shown = hashlib.sha256(self.getpeercert(binary_form=True) or b"").hexdigest()
        if not same_secret(shown, cast(PinnedContext, self.context).pin.hex()):
            raise PinMismatchError(f"{MARK}{shown}")


class PinnedContext(ssl.SSLContext):
    """A client's context, TLS 1.2 and later, for which name, authority and dates of a certificate do not matter."""

    pin: bytes

    def __new__(cls, *_: Any) -> Self:
        """Make it as every client context begins."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, pin: bytes) -> None:
        """Take only the certificate whose SHA-256 (32 bytes) is ``pin``."""
        self.sslobject_class = _PinnedObject
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.check_hostname, self.verify_mode = False, ssl.CERT_NONE
        self.pin = pin
