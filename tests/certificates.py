"""Certificates for tests of TLS: an authority, a server on loopback and a client, each in PEM files."""

import datetime as dt
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates and keeps them in one folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(
            own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(self, name: str, *, host: str = "localhost", days: tuple[int, int] = (-1, 1)) -> Pair:
        """Return a certificate that counts from and until so many days from now.

        For localhost, 127.0.0.1 and ::1, or for another ``host`` alone.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = ["127.0.0.1", "::1"] if host == "localhost" else []
        alternatives = x509.SubjectAlternativeName(
            [x509.DNSName(host), *(x509.IPAddress(ip_address(address)) for address in addresses)]
        )
        builder = self._builder(subject, key, days).add_extension(alternatives, False)
        signed = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        _write_key(pair.key, key)
        return pair

    def write_key(self) -> Path:
        """Write the authority's own key too, for a server whose certificate is signed by itself."""
        path = self.certificate.with_suffix(".key")
        _write_key(path, self._key)
        return path

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: tuple[int, int] = (-1, 1)
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=days[0]))
            .not_valid_after(now + dt.timedelta(days=days[1]))
        )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
