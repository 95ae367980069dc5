"""What a client shows of itself, and whom it trusts: a bearer token and TLS, both off unless given."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.recompute.credentials import read_tokens, show
from gpupool.recompute.pinning import MARK, PinnedContext, pin_of

PREFIX: Final = "GPUPOOL_CLIENT_"
TLS: Final = "TLS"
FILES: Final = {
    "token_file": "TOKEN_FILE",
    "ca": "TLS_CA",
    "certificate": "TLS_CERT",
    "key": "TLS_KEY",
}
"""Parameter of `Credentials.read` -> its variable, without the prefix."""
_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """For every host of a client."""

    token: str | None = None
    tls: ssl.SSLContext | None = None
    """None: for ``https://`` hosts, what this machine trusts."""
    hosts_speak_tls: bool = False
    """Hosts that are named without a scheme, as ``CHIAPOS_RECOMPUTE_HOST`` has them, are asked over TLS."""

    @classmethod
    def read(
        cls,
        *,
        token_file: Path | None = None,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        hosts_speak_tls: bool = False,
        pin: bytes | None = None,
    ) -> Self:
        """Read the first line of the token file, and make a TLS context that trusts ``ca`` (PEM) alone.

        ``certificate`` and ``key`` (PEM) are shown to servers that ask. Token and key are for their owner's eyes only.
        With ``pin`` (SHA-256 of a certificate) that one alone counts, whoever signed it.
        Raises EnvironmentProblemError where a file cannot be used, InvalidInputError where one of the pair is missing,
        or both ``ca`` and ``pin`` are given.
        """
        if (certificate is None) != (key is None):
            raise InvalidInputError(
                "A client certificate needs its key.", remedy="Give --tls-cert and --tls-key together."
            )
        if ca is not None and pin is not None:
            raise InvalidInputError(
                "Hosts are trusted by an authority or by a fingerprint, and both are given.",
                remedy=f"Leave out --tls-ca and {PREFIX}TLS_CA, or set {PREFIX}{TLS} to 1.",
            )
        context = None
        if ca is not None or certificate is not None or pin is not None:
            context = _context(ca) if pin is None else PinnedContext(pin)
            if certificate is not None and key is not None:
                show(context, certificate, key)
        token = None if token_file is None else read_tokens(token_file)[0]
        return cls(token, context, hosts_speak_tls)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **given: Path | None) -> Self:
        """Read what the ``GPUPOOL_CLIENT_*`` variables name; what is ``given`` (as for `read`) counts more.

        Raises as `read`, and InvalidInputError where ``GPUPOOL_CLIENT_TLS`` is neither yes, no nor a fingerprint.
        """
        variables = os.environ if environment is None else environment
        files: dict[str, Path | None] = {}
        for name, variable in FILES.items():
            text = variables.get(PREFIX + variable, "").strip()
            files[name] = given.get(name) or (Path(text) if text else None)
        word = variables.get(PREFIX + TLS, "").strip()
        pin = pin_of(word) if word.startswith(MARK) else None
        return cls.read(**files, hosts_speak_tls=hosts_speak_tls(variables), pin=pin)


def hosts_speak_tls(environment: Mapping[str, str] | None = None) -> bool:
    """Tell whether hosts without a scheme are asked over TLS; raises InvalidInputError where that is not told."""
    return _switch((os.environ if environment is None else environment).get(PREFIX + TLS, ""))


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word.startswith(MARK):
        return True
    if word in _ON | _OFF:
        return word in _ON
    raise InvalidInputError(
        f"{PREFIX}{TLS} is {text[:40]!r}, which is neither yes nor no.",
        remedy=f"Write 1, 0, or {MARK} and the fingerprint of the only certificate that counts.",
    )


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise EnvironmentProblemError(
            f"The TLS authority {ca} cannot be used: {error.strerror or error}.",
            remedy="Check path, rights and format (PEM) of the file.",
        ) from error
