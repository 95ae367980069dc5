"""Who may ask: bearer tokens, TLS and client certificates, all off unless given.

Health and readiness stay open, since whoever watches the process holds no secret of its clients.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError, UnauthorizedError
from gpupool.core.tokens import same_secret

log = structlog.get_logger(__name__)
MIN_TOKEN_LENGTH: Final = 16
_FILE_LIMIT: Final = 64 * 1024
_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the server's own identity, and of who may call."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Only clients with a certificate of this authority are let in."""

    def context(self) -> ssl.SSLContext:
        """Return a context for TLS 1.2 and later; raise EnvironmentProblemError where a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise _unusable(f"certificate {self.certificate} with key {self.key}", error) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise _unusable(f"client CA {self.client_ca}", error) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def tls_files(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """Return the files, or None where none is given; raise InvalidInputError where one is missing."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise InvalidInputError(
            "TLS needs both a certificate and its key.", remedy="Give --tls-cert and --tls-key together."
        )
    return TlsFiles(certificate, key, client_ca)


def read_tokens(path: Path) -> tuple[str, ...]:
    """Return the bearer tokens in a file, one a line, so that an old one lives on while clients change over.

    Raises EnvironmentProblemError where the file cannot be read, is open to other users, or holds no good token.
    """
    remedy = f"Write one token of at least {MIN_TOKEN_LENGTH} characters a line, then: chmod 600 {path}."
    try:
        open_to_all = path.stat().st_mode & 0o004
        with path.open(encoding="ascii") as file:
            tokens = tuple(line.strip() for line in file.read(_FILE_LIMIT).splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds characters that are not ASCII"
        raise EnvironmentProblemError(
            f"The token file {path} cannot be read: {reason}.", remedy=remedy
        ) from error
    if open_to_all:
        raise EnvironmentProblemError(f"The token file {path} can be read by every user.", remedy=remedy)
    if not tokens or any(len(token) < MIN_TOKEN_LENGTH for token in tokens):
        raise EnvironmentProblemError(f"The token file {path} holds no token, or a short one.", remedy=remedy)
    return tokens


def token_guard(tokens: tuple[str, ...]) -> Middleware:
    """Return a middleware that raises UnauthorizedError for requests without one of ``tokens``."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in _OPEN_PATHS and not _is_known(
            request.headers.get("Authorization", ""), tokens
        ):
            log.warning("unauthorized_client_refused", client=request.remote, path=request.path[:200])
            raise UnauthorizedError(
                "This server wants a bearer token, and the request has none that it knows.",
                remedy="Send one from the server's token file as Authorization: Bearer TOKEN.",
            )
        return await handler(request)

    return guard


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_known(header: str, tokens: tuple[str, ...]) -> bool:
    scheme, _, given = header.partition(" ")
    # Every token is compared, so that the time tells nothing about which one was near.
    matches = [same_secret(given.strip(), token) for token in tokens]
    return scheme.lower() == "bearer" and any(matches)


def _unusable(what: str, error: OSError) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"TLS: {what} cannot be used: {error.strerror or error}.",
        remedy="Check that the PEM files exist, may be read, and belong together.",
    )
