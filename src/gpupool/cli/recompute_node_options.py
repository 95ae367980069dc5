"""Options on the servers behind a proxy or a solver front: where their list comes from, and how each is reached.

Secrets are read from files, never from arguments.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpupool.recompute.proxy.trust import Trust

NODES_FILE_HELP = (
    "A watched file: HOST[:PORT] [weight=] [sockets=] [kind=frames|http] [drain] a line; for TLS and tokens plain, tls, "
    "tls=CA_FILE, tls=sha256:HEX, server-name=, cert=, key=, token-file=."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSourceOptions:
    """Where servers come from, besides ``-n``."""

    nodes_file: Annotated[Path | None, typer.Option(help=NODES_FILE_HELP)] = None
    control: Annotated[
        str | None, typer.Option(metavar="URL", help="Control, whose recompute servers are used.")
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token for control's feed [keys/service.token].")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTrustOptions:
    """How servers are reached of which nothing else is said."""

    node_tls: Annotated[
        str | None,
        typer.Option(
            metavar="system|CA_FILE|sha256:HEX",
            help="Reach nodes over TLS, trusting this machine's authorities, a PEM file's, or one certificate.",
        ),
    ] = None
    node_token_file: Annotated[
        Path | None, typer.Option(help="File whose first line is the token for nodes; mode 0600.")
    ] = None
    node_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM) to show to nodes.")] = None
    node_key: Annotated[Path | None, typer.Option(help="Key of that certificate (PEM); mode 0600.")] = None

    def trust(self) -> "Trust":
        """Return the same as the nodes themselves know it; raises InvalidInputError where parts do not go together."""
        from gpupool.recompute.proxy.trust import Trust, trust_of

        given = {
            "tls": self.node_tls,
            "token-file": self.node_token_file,
            "cert": self.node_cert,
            "key": self.node_key,
        }
        return trust_of([f"{name}={value}" for name, value in given.items() if value is not None], Trust())
