"""``gpupool recompute check|lookup``: ask servers one question each, as a harvester would; exit codes tell the truth."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpupool.cli.output import JsonFlag, print_plain_json
from gpupool.cli.recompute_client_options import (
    DEFAULT_HOST,
    AccessOptions,
    HostOption,
    Hosts,
    Level,
    Local,
    Seconds,
    client_options,
    hosts_of,
    keep_kernels,
)
from gpupool.cli.shared_options import takes_groups

if TYPE_CHECKING:
    from gpupool.core.errors import GpupoolError
    from gpupool.recompute.client.checking import Checked


@takes_groups
def check(
    *,
    hosts: Hosts = None,
    level: Level = 3,
    seconds: Seconds = None,
    access: AccessOptions,
) -> None:
    """Send a real k=32 mainnet proof, truncated, to every host and compare what comes back.

    Without hosts and variables it asks 127.0.0.1. Exit code 0 when all hosts recovered it, else that of the first
    fault: 8 not reachable, 9 too slow, 7 busy, 6 not allowed, 1 a wrong answer.

    Examples:

      gpupool recompute check http://192.168.1.10:11989 --level 5

      gpupool recompute check 192.168.1.10,192.168.1.11:11990
    """
    import asyncio

    from gpupool.recompute.client.checking import check_host
    from gpupool.recompute.variables import ChiaposVariables

    variables = ChiaposVariables.from_environment()
    chosen = hosts_of(hosts, variables, default=DEFAULT_HOST)
    limit = variables.recompute_timeout_s if seconds is None else seconds
    credentials = access.credentials()

    async def ask_all() -> "list[Checked]":
        connect_s = variables.recompute_connect_timeout_s
        return await asyncio.gather(
            *(check_host(host, level, limit, connect_s, credentials) for host in chosen)
        )

    faults = []
    for checked in asyncio.run(ask_all()):
        if checked.error is None:
            ms = f"{checked.seconds * 1000:.0f} ms"
            typer.echo(f"{checked.host.url}: all 64 x recovered from C{level} in {ms}, checked: challenge")
        else:
            faults.append(checked.error)
    _end_with(faults)


@takes_groups
def lookup(
    *,
    file: Annotated[Path, typer.Argument(help="JSON file with the question; - reads standard input.")],
    host: HostOption = None,
    level: Level = 3,
    seconds: Seconds = None,
    local: Local = False,
    access: AccessOptions,
    as_json: JsonFlag = False,
) -> None:
    """Look one proof or quality up, with failover and verification, as a harvester does.

    The file holds a request of the API, or a whole proof (plot_id, k, challenge, proof) that is truncated to --level
    first. Exit code 0 with a verified answer, 4 where there is no proof, 9 where no host answered in time.

    Examples:

      gpupool recompute lookup question.json --host 192.168.1.10,192.168.1.11

      gpupool recompute lookup - --json < question.json
    """
    from gpupool.recompute.client import Client
    from gpupool.recompute.client.asking import FILE_LIMIT, answer_fields, read_request
    from gpupool.recompute.client.questions import question_of

    request = read_request(_read(file, FILE_LIMIT + 1), level)
    options = client_options(host, seconds, local=local)
    credentials = access.credentials()
    keep_kernels()
    with Client(options, token=credentials.token, tls=credentials.tls) as client:
        answer = client.ask(question_of(request))
    fields = answer_fields(request, answer)
    if as_json:
        print_plain_json(fields)
        return
    typer.echo(f"Answered by {answer.host} in {fields['ms']:.0f} ms, verified.")
    for name in ("proof", "quality"):
        if name in fields:
            typer.echo(f"{name}: 0x{fields[name]}")
    if "proof" not in fields:
        typer.echo(f"x: {', '.join(fields['x'])}")
    for trouble in answer.troubles:
        typer.echo(f"On the way: {trouble}.", err=True)


def _read(path: Path, most: int) -> str:
    """Return at most ``most`` characters of a file, or of standard input where the path is ``-``."""
    import sys

    from gpupool.core.errors import InvalidInputError

    if str(path) == "-":
        return sys.stdin.read(most)
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(most)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInputError(
            f"The file {path} cannot be read: {reason}.", remedy="Check the path; - reads standard input."
        ) from error


def _end_with(faults: "Sequence[GpupoolError]") -> None:
    """Say every fault; leave with the first one's exit code."""
    for fault in faults[1:]:
        typer.echo(f"Error [{fault.code}]: {fault.message}", err=True)
    if faults:
        raise faults[0]
