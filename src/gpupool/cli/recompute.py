"""``gpupool recompute``: serve recompute from this machine, balance over many, and ask from a harvester's side."""

from pathlib import Path
from typing import Annotated

import typer

from gpupool.cli import (
    recompute_alerts,
    recompute_asking,
    recompute_bench,
    recompute_clients,
    recompute_farm,
    recompute_nodes,
    recompute_proxy,
    recompute_setup,
    recompute_top,
)
from gpupool.cli import recompute_flags as flags
from gpupool.cli.shared_options import takes_groups

app = typer.Typer(help="Recover proof bits of compressed plots for harvesters.", no_args_is_help=True)
app.command("proxy")(recompute_proxy.proxy)
app.add_typer(recompute_nodes.app, name="nodes")
app.command("top")(recompute_top.top)
app.command("clients")(recompute_clients.clients)
app.add_typer(recompute_alerts.app, name="alerts")
app.command("check")(recompute_asking.check)
app.command("lookup")(recompute_asking.lookup)
app.command("farm")(recompute_farm.farm)
app.command("selftest")(recompute_bench.selftest)
app.command("bench")(recompute_bench.bench)
app.command("doctor")(recompute_setup.doctor)
app.command("env")(recompute_setup.env)


@app.callback()
def root() -> None:
    """Recover proof bits of compressed plots for harvesters."""


@app.command()
@takes_groups
def serve(
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [127.0.0.1]; others open it to the network.")
    ] = None,
    listen: flags.ListenOptions,
    queue: Annotated[
        int | None, typer.Option(help="Requests that may wait before the next is refused [64].")
    ] = None,
    drain: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time for work in progress at a stop [5].")
    ] = None,
    solvers: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=256,
            help="Partial proofs of v2 plots solved at once, if chia_rs is installed [1]; 0: none.",
        ),
    ] = None,
    guard: flags.GuardOptions,
    external: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Run and watch your own Gigahorse chia_recompute_server instead."),
    ] = None,
    memory_mb: Annotated[
        int | None, typer.Option(min=1, help="With --external: memory from which on it is started again.")
    ] = None,
    register: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --external: a proxy's list of nodes to stand in while it is kept."
        ),
    ] = None,
    status: Annotated[
        bool | None,
        typer.Option(
            "--status",
            help="With --external: answer HTTP on the port too (/v1/server, /readyz); frames pass on to the program.",
        ),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Serve full proofs and qualities of k=32 plots, C1 to C7, until stopped; with chia_rs also solutions of v2 plots.

    It compiles its kernels at the first start (some seconds) and reports ready on /readyz once it has recovered a
    known proof. CHIAPOS_MAX_CORES and the other variables that farms set are honoured.
    """
    if external is not None:
        flags.start_external(
            listen,
            given={"program": external, "host": host, "stop_seconds": drain}
            | {"memory_mb": memory_mb, "register": register, "status": status},
            refused={"--queue": queue, "--solvers": solvers} | guard.flags(),
            log_level=log_level,
        )
        return
    flags.refuse_without_external({"--memory-mb": memory_mb, "--register": register, "--status": status})
    flags.start(
        listen,
        recompute_host=host,
        recompute_queue_room=queue,
        recompute_drain_seconds=drain,
        recompute_solvers=solvers,
        log_level=log_level,
        **guard.settings(),
    )
