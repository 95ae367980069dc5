"""``gpupool solver``: v2 plots of stock Chia farmers, completed by the pool's servers."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpupool.cli.recompute_node_options import NodeSourceOptions, NodeTrustOptions
from gpupool.cli.shared_options import takes_groups

app = typer.Typer(help="Have partial proofs of v2 plots solved for stock Chia farmers.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Have partial proofs of v2 plots solved for stock Chia farmers."""


@app.command()
@takes_groups
def serve(
    *,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            "-n",
            metavar="HOST[:PORT]",
            help="A recompute server with chia_rs; repeat, or with commas.",
        ),
    ] = None,
    sources: NodeSourceOptions,
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", min=0, max=65535, envvar="GPUPOOL_SOLVER_PORT", help="Port for farmers."
        ),
    ] = 8666,
    host: Annotated[
        str,
        typer.Option(
            envvar="GPUPOOL_SOLVER_HOST",
            help="Address to listen on; others than loopback open it to the network.",
        ),
    ] = "127.0.0.1",
    admin_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            envvar="GPUPOOL_SOLVER_ADMIN_PORT",
            help="Loopback port of /metrics and /v1/front.",
        ),
    ] = 8668,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="NODE_ID", help="A farmer that may ask; repeat for more.")
    ] = None,
    allow_file: Annotated[
        Path | None, typer.Option(help="A watched file of node ids, one a line, # for remarks.")
    ] = None,
    allow_local: Annotated[bool, typer.Option(help="Let every farmer on this machine ask.")] = True,
    chia_rs: Annotated[
        str, typer.Option(metavar="RELEASE", help="Of the farmers; Chia 2.7.5 has the default one.")
    ] = "0.48.0",
    network: Annotated[str, typer.Option(help="Of the farmers.")] = "mainnet",
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", help="All the time of a partial proof; 28 s is the limit.")
    ] = 25.0,
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for partial proofs under way at a stop.")
    ] = 25.0,
    nodes_reached: NodeTrustOptions,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Be the one solver of many farmers: each partial proof goes to the worker that will finish first.

    A worker that fails or keeps silent costs a second try, not a block. Farmers connect with `gpupool solver attach`.

    Examples:

      gpupool solver serve -n 192.168.1.5 -n 192.168.1.6

      gpupool solver serve --host 0.0.0.0 --nodes-file /etc/gpupool/solvers --allow-file /etc/gpupool/farmers
    """
    from gpupool.recompute.solver_front.main import run
    from gpupool.recompute.solver_front.settings import FrontSettings

    run(
        FrontSettings(
            host=host,
            port=port,
            admin_port=admin_port,
            nodes=tuple(node or ()),
            nodes_file=sources.nodes_file,
            control_url=sources.control,
            control_token_file=sources.token_file,
            trust=nodes_reached.trust(),
            allow=tuple(allow or ()),
            allow_file=allow_file,
            allow_local=allow_local,
            network=network,
            release=chia_rs,
            limit_seconds=deadline,
            drain_seconds=drain,
            log_level=log_level.upper(),
        ),
        _say,
    )


@app.command()
def attach(
    *,
    farmer: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="The farmer's RPC; Chia's port for it is 8559.")
    ] = "localhost",
    solver: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="The solver front, as the farmer reaches it.")
    ] = "127.0.0.1:8666",
    chia_root: Annotated[
        Path | None,
        typer.Option(
            envvar="CHIA_ROOT", help="The farmer's Chia folder, for its certificates [~/.chia/mainnet]."
        ),
    ] = None,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=3600, help="Between two looks.")
    ] = 10.0,
    once: Annotated[
        bool, typer.Option("--once", help="Connect if need be, say how it stands, and end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line for each change.")] = False,
) -> None:
    """Connect a stock farmer to the solver front, and again after each restart of the farmer, until stopped.

    Run it on the farmer's machine as the farmer's user: the RPC listens on loopback and wants Chia's own certificates.

    Example:

      gpupool solver attach --solver 192.168.1.10
    """
    from gpupool.core.errors import InvalidInputError
    from gpupool.recompute.addresses import parse_address
    from gpupool.recompute.solver_front.attach_command import AttachOptions, run_attach
    from gpupool.recompute.solver_front.farmer_rpc import RPC_PORT
    from gpupool.recompute.solver_front.settings import PORT

    address = parse_address(farmer, RPC_PORT)
    if address[1] == 8447:
        raise InvalidInputError(
            "8447 is where farmers talk to harvesters; this needs the farmer's RPC.",
            remedy=f"Leave the port out, or give that of the RPC ({RPC_PORT} by default).",
        )
    root = (chia_root or Path.home() / ".chia" / "mainnet").expanduser()
    options = AttachOptions(address, parse_address(solver, PORT), root, every, once=once, as_json=as_json)
    run_attach(options, _say)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
