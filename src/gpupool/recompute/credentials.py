"""Secrets and identities as files: bearer tokens, certificates with their keys, and who may read those files.

Server, proxy and client take them in the same way. A secret is never an argument of a command, and a file of secrets
that other users of the machine can open is refused, since it would be none.
"""

import os
import ssl
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.core.tokens import same_secret

MIN_TOKEN_LENGTH: Final = 16
_FILE_LIMIT: Final = 64 * 1024
_OTHERS: Final = 0o077
"""Rights of the group and of everybody."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of an own identity, and of who may call."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Authority of clients' certificates: who shows none is told so, who shows another's is not let in."""

    def context(self) -> ssl.SSLContext:
        """Return a server's context for TLS 1.2 and later; raise EnvironmentProblemError where a file is of no use.

        With ``client_ca`` a certificate is asked for, not demanded: whoever answers requests must look at
        ``getpeercert()``, and can then say what is missing. TLS itself would only end the connection.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        show(context, self.certificate, self.key)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise _unusable(f"client CA {self.client_ca}", error) from error
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file, for whoever watches them for changes."""
        files = (self.certificate, self.key, self.client_ca)
        return tuple(path for path in files if path is not None)


def tls_files(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """Return the files, or None where none is given; raise InvalidInputError where one is missing."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise InvalidInputError(
            "TLS needs both a certificate and its key.", remedy="Give --tls-cert and --tls-key together."
        )
    return TlsFiles(certificate, key, client_ca)


def show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Let ``context`` show a certificate; raise EnvironmentProblemError where the files are of no use."""
    refuse_open_file(key, "key")

    def password() -> str:
        # Without this OpenSSL would ask the terminal, and a service would hang there.
        raise EnvironmentProblemError(
            f"TLS: the key {key} is encrypted, and nobody is there to type its password.",
            remedy=f"Store it without a password, readable by its owner only: chmod 600 {key}.",
        )

    try:
        context.load_cert_chain(certificate, key, password=password)
    except OSError as error:
        raise _unusable(f"certificate {certificate} with key {key}", error) from error


def refuse_open_file(path: Path, what: str) -> None:
    """Raise EnvironmentProblemError where other users of this machine have rights to a file of secrets."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _unusable(f"{what} {path}", error) from error
    if os.name == "posix" and mode & _OTHERS:
        raise EnvironmentProblemError(
            f"The {what} file {path} can be opened by other users (mode {mode & 0o777:03o}).",
            remedy=f"Let only its owner read it: chmod 600 {path}.",
        )


def read_tokens(path: Path) -> tuple[str, ...]:
    """Return the bearer tokens in a file, one a line, so that an old one lives on while clients change over.

    Raises EnvironmentProblemError where the file cannot be read, is open to other users, or holds no good token.
    """
    remedy = f"Write one token of at least {MIN_TOKEN_LENGTH} characters a line, then: chmod 600 {path}."
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(_FILE_LIMIT + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds characters that are not ASCII"
        raise EnvironmentProblemError(
            f"The token file {path} cannot be read: {reason}.", remedy=remedy
        ) from error
    refuse_open_file(path, "token")
    if len(text) > _FILE_LIMIT:
        raise EnvironmentProblemError(
            f"The token file {path} is larger than {_FILE_LIMIT} bytes.", remedy=remedy
        )
    tokens = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not tokens or any(len(token) < MIN_TOKEN_LENGTH or " " in token for token in tokens):
        raise EnvironmentProblemError(f"The token file {path} holds no token, or a short one.", remedy=remedy)
    return tokens


class TokenFault(StrEnum):
    """What is wrong with the token of a request, to follow who wants one."""

    MISSING = "the request has none"
    UNKNOWN = "the one in the request is none that it knows"

    @property
    def challenge(self) -> str:
        """The value of ``WWW-Authenticate`` that says the same to programs (RFC 6750)."""
        return "Bearer" if self is TokenFault.MISSING else 'Bearer error="invalid_token"'


def token_fault(header: str, tokens: tuple[str, ...]) -> TokenFault | None:
    """Tell what is wrong with the value of an ``Authorization`` header; None: it brings one of ``tokens``."""
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        return TokenFault.MISSING
    # Every token is compared, so that the time tells nothing about which one was near.
    matches = [same_secret(given.strip(), token) for token in tokens]
    return None if any(matches) else TokenFault.UNKNOWN


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unusable(what: str, error: OSError) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"TLS: {what} cannot be used: {error.strerror or error}.",
        remedy="Check that the PEM files exist, may be read, and belong together.",
    )
