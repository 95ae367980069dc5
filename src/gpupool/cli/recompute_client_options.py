"""The options that `gpupool recompute check`, `lookup`, `farm`, `doctor` and `env` share, and what is made of them.

Hosts come from the command line, else from the ``CHIAPOS_RECOMPUTE_*`` variables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from gpupool.recompute.client.credentials import Credentials
    from gpupool.recompute.client.hosts import Host
    from gpupool.recompute.client.options import ClientOptions
    from gpupool.recompute.variables import ChiaposVariables

DEFAULT_HOST: Final = "127.0.0.1"

Hosts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="HOST",
        help="HOST, HOST:PORT, [IPv6]:PORT or https://HOST:PORT, also as a list with commas "
        "[CHIAPOS_RECOMPUTE_HOST].",
    ),
]
HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        "-n",
        metavar="HOST",
        help="A host, repeated or a list with commas [CHIAPOS_RECOMPUTE_HOST].",
    ),
]
Level = Annotated[int, typer.Option(min=1, max=7, help="Compression level to truncate to.")]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=600, help="How long one answer may take [CHIAPOS_RECOMPUTE_TIMEOUT, else 5]."
    ),
]
Local = Annotated[bool, typer.Option("--local", help="Compute here when no host is good.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """What lets a client in at the servers, and servers prove who they are."""

    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File whose first line is the servers' token, mode 0600 [GPUPOOL_CLIENT_TOKEN_FILE]."
        ),
    ] = None
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="Authority (PEM) that https hosts are checked against [GPUPOOL_CLIENT_TLS_CA]."),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Certificate (PEM) to show to https hosts that ask for one [GPUPOOL_CLIENT_TLS_CERT]."
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(help="Key of that certificate (PEM), mode 0600 [GPUPOOL_CLIENT_TLS_KEY]."),
    ] = None

    def credentials(self) -> "Credentials":
        """Read the files; raise errors of `core.errors` where one cannot be used."""
        from gpupool.recompute.client.credentials import Credentials

        return Credentials.from_environment(
            token_file=self.token_file, ca=self.tls_ca, certificate=self.tls_cert, key=self.tls_key
        )


def hosts_of(
    given: Sequence[str] | None, variables: "ChiaposVariables", default: str | None = None
) -> "tuple[Host, ...]":
    """Return the hosts of the command line, else of the variables, else the default, where there is one."""
    from gpupool.recompute.addresses import parse_list
    from gpupool.recompute.client.credentials import hosts_speak_tls
    from gpupool.recompute.client.hosts import Host

    entries = parse_list(given or ())
    if not entries and not variables.recompute_hosts and default is not None:
        entries = (default,)
    if entries:
        return tuple(dict.fromkeys(Host.parse(entry, variables.recompute_port) for entry in entries))
    return tuple(Host(*address, hosts_speak_tls()) for address in variables.recompute_hosts)


def client_options(
    given: Sequence[str] | None, seconds: float | None, *, local: bool, default: str | None = None
) -> "ClientOptions":
    """Return a client's options from the flags, else from the variables."""
    from gpupool.recompute.client.options import ClientOptions
    from gpupool.recompute.variables import ChiaposVariables

    variables = ChiaposVariables.from_environment()
    hosts = hosts_of(given, variables, default)
    return ClientOptions.from_variables(variables, hosts=hosts, timeout_s=seconds, local_fallback=local)


def keep_kernels() -> None:
    """Let the verifier's compiled code be kept for the next run, in the user's own cache."""
    import os
    from contextlib import suppress

    with suppress(RuntimeError):  # a user without a home folder, as in some containers
        os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "gpupool" / "numba"))
