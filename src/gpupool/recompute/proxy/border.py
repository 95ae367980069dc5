"""Who may ask the proxy: TLS on the port that also takes plain connections, certificates and tokens of clients.

All of it is off unless given: old clients speak plain frames and can do no better, and a farm's own network is where
they are. What is given is enforced: with tokens or an authority for clients, whoever brings neither is refused, and
told what is missing.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.credentials import TlsFiles, is_loopback, read_tokens, tls_files, token_fault
from gpupool.recompute.proxy.local_socket import is_local
from gpupool.recompute.renewing import Renewed

OPEN_PATHS: Final = frozenset({b"/healthz", b"/readyz"})
"""Whoever watches the process has no secret of its clients."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BorderFiles:
    """What the operator gives; nothing: everybody may ask."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    tokens: Path | None = None
    require_tls: bool = False

    def tls(self) -> TlsFiles | None:
        """Return the files of TLS, None without; raises InvalidInputError where one is missing."""
        files = tls_files(self.certificate, self.key, self.client_ca)
        if self.require_tls and files is None:
            raise InvalidInputError(
                "TLS is required of clients, and the proxy has no certificate.",
                remedy="Give --tls-cert and --tls-key, or leave --require-tls out.",
            )
        return files


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why somebody may not ask."""

    status: int
    code: str
    detail: str
    challenge: str = ""
    """The value of ``WWW-Authenticate``; empty: none."""


class Border:
    """The rules of one proxy; files that change are taken as they are written."""

    def __init__(self, files: BorderFiles, clock: Callable[[], float]) -> None:
        """Read the files; raises EnvironmentProblemError or InvalidInputError where they are of no use."""
        self._files = files
        tls, tokens = files.tls(), files.tokens
        self._context = None if tls is None else Renewed(tls.paths, tls.context, clock)
        self.is_open = not (files.require_tls or files.client_ca or files.tokens)
        """Whether everybody may ask for everything."""
        self._tokens = None if tokens is None else Renewed((tokens,), lambda: read_tokens(tokens), clock)

    @property
    def context(self) -> ssl.SSLContext | None:
        """What a new TLS connection begins with; None: there is no TLS here."""
        return None if self._context is None else self._context.get()

    @property
    def has_tokens(self) -> bool:
        """Whether clients' tokens are meant for this proxy and go no further."""
        return self._tokens is not None

    def refuses_frames(self, transport: asyncio.BaseTransport) -> Refusal | None:
        """Return why a connection may not send frames; None: it may. Frames have no place for a token."""
        refusal = self._refuses(transport)
        if refusal is None and self.has_tokens and not transport.get_extra_info("peercert"):
            return Refusal(
                401,
                "unauthorized",
                "This proxy wants a token, and Gigahorse's protocol has no place for one.",
            )
        return refusal

    def refuses_request(
        self, transport: asyncio.BaseTransport, path: bytes, headers: dict[bytes, bytes]
    ) -> Refusal | None:
        """Return why an HTTP request is not answered; None: it is."""
        if path in OPEN_PATHS:
            return None
        refusal = self._refuses(transport)
        if refusal is None and self._tokens is not None and not is_local(transport.get_extra_info("socket")):
            given = headers.get(b"authorization", b"").decode("latin-1")
            fault = token_fault(given, self._tokens.get())
            if fault is not None:
                return Refusal(
                    401, "unauthorized", f"This proxy wants a token, and {fault}.", fault.challenge
                )
        return refusal

    def _refuses(self, transport: asyncio.BaseTransport) -> Refusal | None:
        if is_local(transport.get_extra_info("socket")):
            # Its mode has decided: only this user's processes get here.
            return None
        encrypted = transport.get_extra_info("ssl_object") is not None
        if self._files.require_tls and not encrypted:
            return Refusal(403, "tls_required", "This proxy takes TLS only, and the connection is plain.")
        if self._files.client_ca is not None and not transport.get_extra_info("peercert"):
            return Refusal(
                401, "no_certificate", "This proxy wants a client certificate, and none was shown."
            )
        return None

    def warn_if_open(self, host: str) -> None:
        """Say at the start what everybody who reaches the port may do."""
        if is_loopback(host) or self._files.client_ca is not None or self.has_tokens:
            return
        log.warning(
            "open_to_everyone",
            host=host,
            what_to_do="Whoever reaches this port can use the servers behind it, which is usual in a farm's own"
            " network. Else limit it with a firewall, or give --client-tokens, or --tls-cert, --tls-key and"
            " --client-ca.",
        )
