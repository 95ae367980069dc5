"""``gpupool recompute proxy``: one address in front of many servers.

It listens on loopback until told otherwise. The options are read here; another process takes this one's place then.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpupool.cli.recompute_node_options import NodeSourceOptions, NodeTrustOptions
from gpupool.cli.recompute_proxy_dropin import NODE_HELP, PORT_HELP, TAKEOVER_HELP
from gpupool.cli.recompute_proxy_process import become_proxy
from gpupool.cli.shared_options import takes_groups


@takes_groups
def proxy(
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", "-n", metavar="HOST[:PORT]", help=NODE_HELP)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            min=0,
            max=65535,
            help=f"{PORT_HELP} With --unix and without this: no port at all.",
        ),
    ] = None,
    unix: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Listen at a Unix socket too, which only this user may use: where the harvester's library asks.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback open it to the network.")
    ] = "127.0.0.1",
    sources: NodeSourceOptions,
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
    client_rate: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Requests a second that one client address may send [as many as it likes]."
        ),
    ] = None,
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
    nodes_reached: NodeTrustOptions,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Certificate (PEM): clients may speak TLS on the same port. Taken anew when it changes."
        ),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of that certificate (PEM); mode 0600.")] = None,
    require_tls: Annotated[
        bool, typer.Option("--require-tls", help="Refuse clients that do not speak TLS.")
    ] = False,
    client_ca: Annotated[
        Path | None, typer.Option(help="Authority (PEM) of clients' certificates: each must show one.")
    ] = None,
    client_tokens: Annotated[
        Path | None,
        typer.Option(help="Tokens, one a line, mode 0600: HTTP requests must bring one, frames are refused."),
    ] = None,
    check_answers: Annotated[
        bool,
        typer.Option(help="Check answers of servers of this program; one that is wrong is asked elsewhere."),
    ] = True,
) -> None:
    """Forward lookups to the server that will finish first, and to another one when it fails.

    Takes Gigahorse clients (for Gigahorse servers) and HTTP (for servers of this program) on one port.

    Clients on the farm's own network may speak plainly; what is given about TLS, certificates and tokens is enforced.
    Secrets are read from files, never from arguments.

    Examples:

      gpupool recompute proxy --host 0.0.0.0 -n 192.168.1.5 -n 192.168.1.6:11000

      gpupool recompute proxy --unix /run/user/1000/sidecar.sock -n 192.168.1.5

      gpupool recompute proxy --host 0.0.0.0 -n "gpu1.farm:11989 tls=/etc/gpupool/ca.pem token-file=/etc/gpupool/token"
    """
    from gpupool.recompute.proxy.border import BorderFiles
    from gpupool.recompute.proxy.settings import DEFAULT_PORT, ProxySettings

    settings = ProxySettings(
        host=host,
        port=DEFAULT_PORT if port is None else port,
        tcp=port is not None or unix is None,
        unix=None if unix is None else unix.absolute(),
        nodes=tuple(node or ()),
        nodes_file=sources.nodes_file,
        control_url=sources.control,
        token_file=sources.token_file,
        deadline_seconds=deadline,
        sockets=sockets,
        frame_limit=frame_limit,
        connections=connections,
        client_rate=client_rate,
        drain_seconds=drain,
        takeover=takeover,
        keep_state=True,
        silent_seconds=silent_after,
        alert_command=alert_command,
        alert_url=alert_url,
        log_level=log_level.upper(),
        border=BorderFiles(tls_cert, tls_key, client_ca, client_tokens, require_tls),
        trust=nodes_reached.trust(),
        check_answers=check_answers,
    )
    become_proxy(settings, sys.argv[1:])
