"""``gpupool recompute``: serve recompute from this machine, balance over many, and ask from a harvester's side."""

from pathlib import Path
from typing import Annotated

import typer

from gpupool.cli import (
    recompute_alerts,
    recompute_clients,
    recompute_nodes,
    recompute_proxy,
    recompute_tools,
    recompute_top,
)
from gpupool.cli import recompute_flags as flags

app = typer.Typer(help="Recover proof bits of compressed plots for harvesters.", no_args_is_help=True)
app.command("proxy")(recompute_proxy.proxy)
app.add_typer(recompute_nodes.app, name="nodes")
app.command("top")(recompute_top.top)
app.command("clients")(recompute_clients.clients)
app.add_typer(recompute_alerts.app, name="alerts")
app.command("check")(recompute_tools.check)
app.command("lookup")(recompute_tools.lookup)
app.command("farm")(recompute_tools.farm)
app.command("doctor")(recompute_tools.doctor)
app.command("env")(recompute_tools.env)


@app.callback()
def root() -> None:
    """Recover proof bits of compressed plots for harvesters."""


@app.command()
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [127.0.0.1]; others open it to the network.")
    ] = None,
    port: flags.Port = None,
    threads: flags.Threads = None,
    cuda_devices: flags.CudaDevices = None,
    opencl_devices: flags.OpenClDevices = None,
    cuda: flags.CudaIndexes = None,
    opencl: flags.OpenClIndexes = None,
    queue: Annotated[
        int | None, typer.Option(help="Requests that may wait before the next is refused [64].")
    ] = None,
    drain: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time for work in progress at a stop [5].")
    ] = None,
    token_file: flags.TokenFile = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    client_ca: flags.ClientCa = None,
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
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Serve full proofs and qualities of k=32 plots, C1 to C5, until stopped.

    It compiles its kernels at the first start (some seconds) and reports ready on /readyz once it has recovered a
    known proof. CHIAPOS_MAX_CORES and the other variables that farms set are honoured.
    """
    cards = flags.Cards(cuda_devices, opencl_devices, cuda or [], opencl or [])
    if external is not None:
        flags.start_external(
            cards,
            given={"program": external, "host": host, "port": port, "threads": threads}
            | {"memory_mb": memory_mb, "register": register, "stop_seconds": drain},
            refused={"--queue": queue, "--token-file": token_file, "--tls-cert": tls_cert}
            | {"--tls-key": tls_key, "--client-ca": client_ca},
            log_level=log_level,
        )
        return
    flags.refuse_without_external({"--memory-mb": memory_mb, "--register": register})
    flags.start(
        cards,
        recompute_host=host,
        recompute_port=port,
        recompute_threads=threads,
        recompute_queue_room=queue,
        recompute_drain_seconds=drain,
        recompute_token_file=token_file,
        recompute_tls_cert=tls_cert,
        recompute_tls_key=tls_key,
        recompute_client_ca=client_ca,
        log_level=log_level,
    )
