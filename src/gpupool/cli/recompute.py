"""``gpupool recompute``: serve recompute from this machine, and ask a server the question with the known answer."""

from typing import Annotated

import typer

app = typer.Typer(help="Recover proof bits of compressed plots for harvesters.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Recover proof bits of compressed plots for harvesters."""


@app.command()
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [127.0.0.1]; others open it to the network.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", "-p", help="Port to listen on [11989]; 0 takes a free one.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-r", help="Requests worked on at once [1]; 0 or less: one a core."),
    ] = None,
    queue: Annotated[
        int | None, typer.Option(help="Requests that may wait before the next is refused [64].")
    ] = None,
    drain: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time for work in progress at a stop [5].")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Serve full proofs and qualities of k=32 plots, C1 to C5, until stopped.

    It compiles its kernels at the first start (some seconds) and reports ready on /readyz once it has recovered a
    known proof.
    """
    import os

    from pydantic import ValidationError

    from gpupool.contracts.problems import describe
    from gpupool.core.errors import InvalidInputError
    from gpupool.recompute.server.main import run
    from gpupool.recompute.server.settings import RecomputeServerSettings

    if threads is not None and threads < 1:
        threads = len(os.sched_getaffinity(0))
    given = {
        "recompute_host": host,
        "recompute_port": port,
        "recompute_threads": threads,
        "recompute_queue_room": queue,
        "recompute_drain_seconds": drain,
        "log_level": log_level,
    }
    try:
        settings = RecomputeServerSettings.model_validate(
            {key: value for key, value in given.items() if value is not None}
        )
    except ValidationError as error:
        raise InvalidInputError(
            f"The recompute server's settings are not valid: {describe(error)}."
        ) from error
    run(settings)


@app.command()
def check(
    server: Annotated[str, typer.Argument(metavar="URL")] = "http://127.0.0.1:11989",
    level: Annotated[int, typer.Option(min=1, max=5, help="Compression level to truncate to.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.001, max=600, help="How long the answer may take.")] = 5.0,
) -> None:
    """Send a real k=32 mainnet proof, truncated, to a server and compare what comes back.

    Example: gpupool recompute check http://192.168.1.10:11989 --level 5
    """
    import time

    from gpupool.contracts.recompute_client import RecomputeClient
    from gpupool.core.errors import GpupoolError
    from gpupool.recompute.demo import demo_request, known_proof

    with RecomputeClient(server) as client:
        began = time.perf_counter()
        reply = client.recover_proof(demo_request(level), seconds=seconds)
        spent = time.perf_counter() - began
    if reply.numbers() != known_proof().xs:
        raise GpupoolError(
            f"{server} answered with another proof than the one that was truncated.",
            remedy="Take this server out of use and report it with its log.",
        )
    typer.echo(
        f"{server}: all 64 x recovered from C{level} in {spent * 1000:.0f} ms, checked: {reply.checked}"
    )
