"""Why TLS did not come about, in words that say what to do; for either side of a connection.

A TLS library tells the fault in its own terms ("tlsv1 alert unknown ca"), and often only to the side that is not at
fault. Each reason that farms meet gets one sentence and one remedy here.
"""

import re
import ssl
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Words:
    """What happened, to follow the name of the other side, and what to do about it."""

    what: str
    remedy: str


class PinMismatchError(ssl.SSLError):
    """The other side showed another certificate than the pinned one."""


_EXPIRED: Final = 10
_NOT_YET: Final = 9
_SELF_SIGNED: Final = 18
_UNKNOWN: Final = frozenset({2, 19, 20, 21})
_OTHER_NAME: Final = frozenset({62, 64})
_ALERT: Final = re.compile(r"ALERT_(.+)")
ASK_OVER_TLS: Final = (
    "Ask it over TLS: https://HOST:PORT where a list takes addresses, GPUPOOL_CLIENT_TLS=1 for the hosts of "
    "CHIAPOS_RECOMPUTE_HOST, tls, tls=CA_FILE or tls=sha256:HEX after a proxy's node. Gigahorse's own programs speak "
    "no TLS: put a proxy of ours beside them."
)
"""How each tool is told, for whoever asked a side that takes nothing plain."""
ASK_PLAINLY: Final = (
    "Ask it without TLS (http://HOST:PORT, GPUPOOL_CLIENT_TLS=0, plain after a proxy's node), or start it with "
    "--tls-cert and --tls-key."
)
_CA_REMEDY: Final = (
    "Give the authority that signed the server's certificate (--tls-ca FILE; for a proxy's node tls=FILE)."
)


def of_certificate(error: ssl.SSLCertVerificationError) -> Words:
    """Return why the certificate that the other side showed is not accepted."""
    code = error.verify_code
    if code == _EXPIRED:
        return Words(
            "has a certificate that has expired", "Renew the certificate of that side; check both clocks."
        )
    if code == _NOT_YET:
        return Words(
            "has a certificate that is not valid yet", "Set the clocks of both machines right, or wait."
        )
    if code == _SELF_SIGNED:
        return Words(
            "has a certificate that is signed by itself, so nobody vouches for it",
            "Give a copy of that certificate as the authority (--tls-ca FILE; for a proxy's node tls=FILE), or its "
            "fingerprint (GPUPOOL_CLIENT_TLS=sha256:HEX; for a proxy's node tls=sha256:HEX).",
        )
    if code in _UNKNOWN:
        return Words("has a certificate of an authority that is not trusted here", _CA_REMEDY)
    if code in _OTHER_NAME:
        return Words(
            f"has a certificate for another name ({error.verify_message.rstrip('.')})",
            "Use the name or address in the certificate, or issue one for this name (a proxy's node may take "
            "server-name=NAME).",
        )
    return Words(f"has a certificate that is not trusted ({error.verify_message})", _CA_REMEDY)


def of_asking(error: OSError) -> Words:
    """Return why a handshake failed, for the side that made the connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return of_certificate(error)
    if isinstance(error, PinMismatchError):
        return Words(
            f"has another certificate than the pinned one ({error.args[-1]})",
            "If it was renewed, put its new fingerprint into GPUPOOL_CLIENT_TLS=sha256:HEX (for a proxy's node "
            "tls=sha256:HEX); else somebody else answers there.",
        )
    alert = _alert(error)
    if alert == "CERTIFICATE_REQUIRED":
        return Words(
            "wants a client certificate, and none was shown",
            "Give one of its authority with its key (--tls-cert and --tls-key; for a proxy's node cert= and key=).",
        )
    if alert in {"UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED"}:
        expired = alert == "CERTIFICATE_EXPIRED"
        return Words(
            "does not accept the client certificate that was shown"
            + (": it has expired" if expired else ": it is not one of its authority"),
            "Show one that is valid and was signed by the authority in the other side's --client-ca.",
        )
    return Words("does not speak TLS, or another version of it", ASK_PLAINLY)


def of_answering(error: OSError) -> Words:
    """Return why a handshake failed, for the side that listens."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = of_certificate(error)
        return Words(
            words.what, "Let the client show a valid certificate of the authority in --client-ca, or none."
        )
    alert = _alert(error)
    if alert in {"UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "EOF"}:
        return Words(
            "does not accept this certificate: it does not know its authority, or calls this side by a name that is "
            "not in it",
            "Give the client the authority (--tls-ca FILE), and let it use a name of the certificate.",
        )
    if alert == "CERTIFICATE_EXPIRED":
        return Words(
            "does not accept this certificate: it has expired",
            "Renew it; the new files count as soon as they are written over the old ones.",
        )
    return Words(
        f"failed in the TLS handshake ({getattr(error, 'reason', None) or error})",
        "Let the client speak TLS 1.2 or later.",
    )


def _alert(error: OSError) -> str:
    """Return the name of the alert that the other side has sent; ``EOF`` where it just left, else nothing."""
    reason = str(getattr(error, "reason", None) or "")
    if isinstance(error, ssl.SSLEOFError | ConnectionError) or "EOF" in reason:
        return "EOF"
    match = _ALERT.search(reason)
    return match[1] if match else ""
