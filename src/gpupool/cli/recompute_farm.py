"""``gpupool recompute farm``: a farm's load on the servers, and what it measured."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.cli.output import JsonFlag, print_plain_json
from gpupool.cli.recompute_client_options import (
    DEFAULT_HOST,
    AccessOptions,
    Hosts,
    Level,
    Local,
    Seconds,
    client_options,
    keep_kernels,
)
from gpupool.cli.shared_options import takes_groups

if TYPE_CHECKING:
    from gpupool.recompute.client.credentials import Credentials
    from gpupool.recompute.client.options import ClientOptions
    from gpupool.recompute.client.replay import Load, Result

_UNANSWERED: Final = 9


@takes_groups
def farm(
    *,
    hosts: Hosts = None,
    count: Annotated[int, typer.Option(min=1, max=10_000_000, help="Look-ups in all.")] = 200,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, max=100_000, help="Look-ups a second [each as soon as one ends]."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, help="Look-ups at one time.")] = 16,
    proofs: Annotated[
        float, typer.Option(min=0, max=100, help="Full proofs in 100 look-ups; the others are qualities.")
    ] = 4.0,
    level: Level = 3,
    seconds: Seconds = None,
    local: Local = False,
    access: AccessOptions,
    as_json: JsonFlag = False,
) -> None:
    """Put a farm's load on the hosts: the shipped mainnet proof, looked up again and again, every answer verified.

    Times count from the moment a look-up was due. Ctrl-C ends it early and shows what was measured so far. Exit code
    0 when every look-up was answered, 9 when one was not.

    Examples:

      gpupool recompute farm 192.168.1.10,192.168.1.11 --count 1000 --rate 20 --level 5

      gpupool recompute farm --json
    """
    from gpupool.recompute.client.replay import Load, Result

    load = Load(count=count, concurrency=concurrency, rate=rate, proof_share=proofs / 100, level=level)
    options = client_options(hosts, seconds, local=local, default=DEFAULT_HOST)
    credentials = access.credentials()
    keep_kernels()
    result, interrupted = Result(), False
    try:
        _replay(options, credentials, load, result)
    except KeyboardInterrupt:
        interrupted = True
    _print_result(result, load, as_json=as_json)
    if interrupted:
        raise typer.Exit(130)
    if result.failed:
        raise typer.Exit(_UNANSWERED)


def _replay(options: "ClientOptions", credentials: "Credentials", load: "Load", result: "Result") -> None:
    import asyncio
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from gpupool.recompute.client import AsyncClient
    from gpupool.recompute.client.replay import replay

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("look-ups", total=load.count)

        async def go() -> None:
            async with AsyncClient(options, token=credentials.token, tls=credentials.tls) as client:
                await replay(client, load, result, lambda: progress.advance(task))

        asyncio.run(go())


def _print_result(result: "Result", load: "Load", *, as_json: bool) -> None:
    times = {
        name: result.percentile_ms(p) for name, p in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
    }
    answered = len(result.seconds)
    rate = round(answered / result.wall_s, 1) if result.wall_s else 0.0
    if as_json:
        print_plain_json(
            {
                "asked": answered + result.failed,
                "answered": answered,
                "failed": result.failed,
                "rescued": result.rescued,
                "level": load.level,
                "per_second": rate,
                "ms": times,
                "hosts": dict(result.by_host),
                "errors": dict(result.faults),
            }
        )
        return
    typer.echo(f"{answered} of {answered + result.failed} look-ups answered, {rate:g}/s, all verified.")
    if answered:
        typer.echo("  ".join(f"{name} {value:g} ms" for name, value in times.items()))
    for host, number in result.by_host.most_common():
        typer.echo(f"  {host}: {number}")
    if result.rescued:
        typer.echo(f"{result.rescued} were answered although a host failed on the way.")
    for words, number in result.faults.most_common(5):
        typer.echo(f"{number} failed: {words}", err=True)
