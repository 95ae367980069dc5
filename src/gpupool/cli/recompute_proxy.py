"""``gpupool recompute proxy`` and the command ``chia_recompute_proxy``: one address in front of many servers.

The command under the original's name takes the original's flags and listens on every address, as that does; the
other one listens on loopback until told otherwise.
"""

import argparse
import sys
from pathlib import Path
from typing import Annotated

import typer

PORT_HELP = "Port to listen on [11989]; 0 takes a free one."
TAKEOVER_HELP = "Replace the proxy that runs at this address: it hands its socket and clients over and leaves; no lookup is lost."
NODE_HELP = "A server to forward to; port 11989 where none is given. May be repeated."


def proxy(
    node: Annotated[
        list[str] | None, typer.Option("--node", "-n", metavar="HOST[:PORT]", help=NODE_HELP)
    ] = None,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help=PORT_HELP)] = 11989,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback open it to the network.")
    ] = "127.0.0.1",
    nodes_file: Annotated[
        Path | None,
        typer.Option(
            help="A watched file: HOST[:PORT] [weight=] [sockets=] [kind=frames|http] [drain] a line."
        ),
    ] = None,
    control: Annotated[
        str | None, typer.Option(metavar="URL", help="Control, whose recompute servers are used.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token for control's feed [keys/service.token].")
    ] = None,
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", help="All the time of a request that names none.")
    ] = 4.5,
    sockets: Annotated[
        int, typer.Option(help="Connections to a Gigahorse server at first; learned upward.")
    ] = 12,
    frame_limit: Annotated[
        int, typer.Option(metavar="BYTES", help="Largest frame, 1048576 at most.")
    ] = 65536,
    connections: Annotated[int, typer.Option(help="Clients connected at once.")] = 4096,
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for requests under way at a stop.")
    ] = 30.0,
    takeover: Annotated[bool, typer.Option("--takeover", help=TAKEOVER_HELP)] = False,
    silent_after: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Least time after which a regular client is called silent."),
    ] = 300.0,
    alert_command: Annotated[
        Path | None, typer.Option(metavar="PROGRAM", help="Program that gets alerts as JSON on its input.")
    ] = None,
    alert_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="GPUPOOL_PROXY_ALERT_URL",
            help="Address that gets alerts as JSON by POST. A secret one goes into the variable.",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Forward lookups to the server that will finish first, and to another one when it fails.

    Takes Gigahorse clients (for Gigahorse servers) and HTTP (for servers of this program) on one port.

    Example: gpupool recompute proxy --host 0.0.0.0 -n 192.168.1.5 -n 192.168.1.6:11000
    """
    from gpupool.recompute.proxy.main import run
    from gpupool.recompute.proxy.settings import ProxySettings

    settings = ProxySettings(
        host=host,
        port=port,
        nodes=tuple(node or ()),
        nodes_file=nodes_file,
        control_url=control,
        token_file=token_file,
        deadline_seconds=deadline,
        sockets=sockets,
        frame_limit=frame_limit,
        connections=connections,
        drain_seconds=drain,
        takeover=takeover,
        keep_state=True,
        silent_seconds=silent_after,
        alert_command=alert_command,
        alert_url=alert_url,
        log_level=log_level.upper(),
    )
    run(settings, _say)


def main() -> None:
    """Be ``chia_recompute_proxy``: the same flags, the same lines, exit code 2 where no server is named."""
    from gpupool.core.errors import GpupoolError
    from gpupool.recompute.proxy.main import run
    from gpupool.recompute.proxy.settings import ProxySettings

    given = _parser().parse_args()
    try:
        run(
            ProxySettings(
                host=given.host,
                port=given.port,
                nodes=tuple(given.node),
                takeover=given.takeover,
                keep_state=True,
            ),
            _say,
        )
    except GpupoolError as error:
        sys.stderr.write(f"Error [{error.code}]: {error.message}\n  What to do: {error.remedy}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chia_recompute_proxy",
        description="Forward lookups of harvesters to recompute servers. See also: gpupool recompute proxy --help",
    )
    parser.add_argument("-p", "--port", type=int, default=11989, help=PORT_HELP)
    parser.add_argument("--host", default="0.0.0.0", help="Address to listen on [0.0.0.0].")  # noqa: S104
    parser.add_argument("-n", "--node", action="append", default=[], metavar="HOST[:PORT]", help=NODE_HELP)
    parser.add_argument("--takeover", action="store_true", help=TAKEOVER_HELP)
    return parser


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
