"""How a node is reached safely: whether over TLS, whom its certificate must name, and what this proxy shows it.

One grammar for the command line, the file of nodes and the proxy's defaults. Contexts and tokens are made of files,
once for all nodes that share them, and anew when the files change.
"""

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.recompute.credentials import read_tokens, show
from gpupool.recompute.pinning import MARK, pin_of
from gpupool.recompute.renewing import Renewed

OPTION_WORDS: Final = "plain, tls, tls=CA_FILE, tls=sha256:HEX, server-name=, cert=, key= or token-file="


@dataclass(frozen=True, slots=True)
class Trust:
    """How one node, or each that says nothing else, is reached; the default is plain and without a token."""

    tls: bool = False
    ca: Path | None = None
    """PEM of the only authorities that count; None: those of this machine."""
    pin: bytes | None = None
    """SHA-256 of the only certificate that counts; name and authority do not matter then."""
    server_name: str | None = None
    """The name that the certificate must hold; None: the node's host."""
    certificate: Path | None = None
    """PEM of what this proxy shows; with ``key``."""
    key: Path | None = None
    token_file: Path | None = None
    """File whose first line is the bearer token."""

    def __post_init__(self) -> None:
        """Raise InvalidInputError where parts do not fit together."""
        if (self.certificate is None) != (self.key is None):
            raise InvalidInputError(
                "A certificate to show needs its key.", remedy="Give cert= and key= together."
            )
        if self.certificate is not None and not self.tls:
            raise InvalidInputError("A certificate is shown over TLS only.", remedy="Add tls or tls=CA_FILE.")

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that its TLS context is made of."""
        files = (self.ca, self.certificate, self.key)
        return tuple(path for path in files if path is not None)


def trust_of(words: Iterable[str], default: Trust) -> Trust:
    """Return what ``words`` such as ``tls=/etc/ca.pem token-file=/etc/token`` say; ``default`` says the rest.

    Raises InvalidInputError for a word that is not known.
    """
    trust = default
    pair: dict[str, Path] = {}
    for word in words:
        name, _, value = word.partition("=")
        if word == "plain":
            trust = replace(Trust(), token_file=trust.token_file)
        elif name == "tls":
            trust = _with_tls(trust, value)
        elif name == "server-name" and value:
            trust = replace(trust, server_name=value)
        elif name in {"cert", "key"} and value:
            pair[name] = Path(value)
        elif name == "token-file" and value:
            trust = replace(trust, token_file=Path(value))
        else:
            raise InvalidInputError(
                f"{word[:60]!r} says nothing about a node.", remedy=f"Write {OPTION_WORDS}."
            )
    if pair:
        trust = replace(trust, certificate=pair.get("cert"), key=pair.get("key"))
    return trust


def _with_tls(trust: Trust, value: str) -> Trust:
    if value in {"", "system"}:
        return replace(trust, tls=True, ca=None, pin=None)
    if not value.startswith(MARK):
        return replace(trust, tls=True, ca=Path(value), pin=None)
    return replace(trust, tls=True, ca=None, pin=pin_of(value))


class Keyring:
    """TLS contexts and tokens by what they are made of."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._contexts: dict[Trust, Renewed[ssl.SSLContext]] = {}
        self._tokens: dict[Path, Renewed[bytes]] = {}

    def context(self, trust: Trust) -> ssl.SSLContext:
        """Return the context for connections under ``trust``; raises EnvironmentProblemError at its first use."""
        trust = replace(trust, token_file=None, server_name=None)
        found = self._contexts.get(trust)
        if found is None:
            found = self._contexts[trust] = Renewed(trust.paths, lambda: _context(trust), self._clock)
        return found.get()

    def authorization(self, trust: Trust) -> bytes:
        """Return the header line that brings the token, empty without one; raises as `context`."""
        path = trust.token_file
        if path is None:
            return b""
        found = self._tokens.get(path)
        if found is None:
            found = self._tokens[path] = Renewed((path,), lambda: _header(path), self._clock)
        return found.get()

    def check(self, trust: Trust) -> None:
        """Raise EnvironmentProblemError where a file of ``trust`` is of no use."""
        if trust.tls:
            self.context(trust)
        self.authorization(trust)


def _header(path: Path) -> bytes:
    return f"Authorization: Bearer {read_tokens(path)[0]}\r\n".encode("ascii")


def _context(trust: Trust) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if trust.pin is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif trust.ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(trust.ca)
        except OSError as error:
            raise EnvironmentProblemError(
                f"TLS: the authority {trust.ca} cannot be used: {error.strerror or error}.",
                remedy="Check that the PEM file exists and may be read.",
            ) from error
    if trust.certificate is not None and trust.key is not None:
        show(context, trust.certificate, trust.key)
    return context
