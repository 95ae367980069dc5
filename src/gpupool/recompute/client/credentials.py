"""What a client shows of itself, and whom it trusts: a bearer token and TLS, both off unless given."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError

_FILE_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """For every host of a client."""

    token: str | None = None
    tls: ssl.SSLContext | None = None
    """None: for ``https://`` hosts, what this machine trusts."""

    @classmethod
    def read(
        cls,
        *,
        token_file: Path | None = None,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> Self:
        """Read the first line of the token file, and make a TLS context that trusts ``ca`` (PEM) alone.

        ``certificate`` and ``key`` (PEM) are shown to servers that ask. Raises EnvironmentProblemError where a file
        cannot be used, InvalidInputError where one of the pair is missing.
        """
        if (certificate is None) != (key is None):
            raise InvalidInputError(
                "A client certificate needs its key.", remedy="Give --tls-cert and --tls-key together."
            )
        context = None
        if ca is not None or certificate is not None:
            try:
                context = ssl.create_default_context(cafile=ca)
                if certificate is not None:
                    context.load_cert_chain(certificate, key)
            except OSError as error:
                raise _unusable("One of the TLS files", error) from error
        return cls(None if token_file is None else _token(token_file), context)


def _token(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            lines = file.read(_FILE_LIMIT).split()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(f"The token file {path}", error) from error
    if not lines:
        raise EnvironmentProblemError(
            f"The token file {path} is empty.", remedy="Write the servers' token into it."
        )
    return lines[0]


def _unusable(what: str, error: Exception) -> EnvironmentProblemError:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not ASCII"
    return EnvironmentProblemError(
        f"{what} cannot be used: {reason}.", remedy="Check path, rights and format (PEM) of the files given."
    )
