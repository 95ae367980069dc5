"""Who this front is to farmers: a certificate of Chia's public authority, and its hash, the node id.

Chia's certificates prove no more than that somebody holds a key: the authority's own key is published with Chia's
software, so that every node can make a certificate for itself. It is shipped here for the same purpose. Whom to trust
is decided by node id alone.
"""

import datetime as dt
import hashlib
import ssl
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.files import ensure_private_dir, remove_unfinished, write_private
from gpupool.recompute.credentials import show

_DATA = files("gpupool.recompute.solver_front").joinpath("data")
_CERTIFICATE_NAME, _KEY_NAME = "solver-front.crt", "solver-front.key"
_ENDS = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


def node_id_of(certificate: bytes) -> str:
    """Return the node id (64 hexadecimal digits) of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


def authority() -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    """Return Chia's public authority and its published key."""
    key = serialization.load_pem_private_key(_DATA.joinpath("chia_ca.key").read_bytes(), None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise EnvironmentProblemError(
            "The key of Chia's authority is not the one that was shipped.", remedy="Install gpupool anew."
        )
    return x509.load_pem_x509_certificate(_DATA.joinpath("chia_ca.crt").read_bytes()), key


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate with its key, as files."""

    certificate: Path
    key: Path
    node_id: str

    @classmethod
    def load_or_make(cls, folder: Path) -> "Identity":
        """Return the identity kept in ``folder`` (both files mode 0600); make it at the first start.

        Raises EnvironmentProblemError where the files cannot be read or hold no certificate.
        """
        certificate, key = folder / _CERTIFICATE_NAME, folder / _KEY_NAME
        ensure_private_dir(folder)
        if not (certificate.exists() and key.exists()):
            for path, content in zip((key, certificate), _made(), strict=True):
                remove_unfinished(path)
                write_private(path, content)
        try:
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
        except (OSError, ValueError) as error:
            raise EnvironmentProblemError(
                f"The certificate {certificate} cannot be used: {error}.",
                remedy=f"Mend its rights, or remove it and {key.name}: a new node id is made, which farmers need not know.",
            ) from error
        return cls(certificate, key, node_id_of(found.public_bytes(serialization.Encoding.DER)))

    def context(self) -> ssl.SSLContext:
        """Return what the front listens with: TLS 1.3, and only who has a certificate of the authority comes in."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        show(context, self.certificate, self.key)
        context.load_verify_locations(cadata=_DATA.joinpath("chia_ca.crt").read_text("ascii"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def _made() -> tuple[bytes, bytes]:
    """Return a new key and its certificate, in PEM."""
    issuer, issuer_key = authority()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpupool solver front")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(_ENDS)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("chia.net")]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)
