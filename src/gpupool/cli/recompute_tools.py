"""``gpupool recompute check|lookup|farm|doctor|env``: what an operator runs on the harvester's side.

Hosts come from the command line, else from the ``CHIAPOS_RECOMPUTE_*`` variables; exit codes tell the truth.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.cli.output import JsonFlag, print_plain_json
from gpupool.recompute.start_script import Shell

if TYPE_CHECKING:
    from gpupool.core.errors import GpupoolError
    from gpupool.recompute.client.checking import Checked
    from gpupool.recompute.client.credentials import Credentials
    from gpupool.recompute.client.hosts import Host
    from gpupool.recompute.client.options import ClientOptions
    from gpupool.recompute.client.replay import Load, Result
    from gpupool.recompute.variables import ChiaposVariables

_DEFAULT_HOST: Final = "127.0.0.1"
_FAILED: Final = 5
"""As `gpupool doctor`."""
_UNANSWERED: Final = 9

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
Level = Annotated[int, typer.Option(min=1, max=5, help="Compression level to truncate to.")]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=600, help="How long one answer may take [CHIAPOS_RECOMPUTE_TIMEOUT, else 5]."
    ),
]
Local = Annotated[bool, typer.Option("--local", help="Compute here when no host is good.")]
TokenFile = Annotated[Path | None, typer.Option(help="File whose first line is the servers' token.")]
TlsCa = Annotated[Path | None, typer.Option(help="Authority (PEM) that https hosts are checked against.")]
TlsCert = Annotated[
    Path | None, typer.Option(help="Certificate (PEM) to show to https hosts that ask for one.")
]
TlsKey = Annotated[Path | None, typer.Option(help="Key of that certificate (PEM).")]


def check(
    hosts: Hosts = None,
    level: Level = 3,
    seconds: Seconds = None,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
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
    chosen = _hosts(hosts, variables, default=_DEFAULT_HOST)
    limit = variables.recompute_timeout_s if seconds is None else seconds
    credentials = _credentials(token_file, tls_ca, tls_cert, tls_key)

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


def lookup(
    file: Annotated[Path, typer.Argument(help="JSON file with the question; - reads standard input.")],
    host: HostOption = None,
    level: Level = 3,
    seconds: Seconds = None,
    local: Local = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
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
    options = _options(host, seconds, local=local)
    credentials = _credentials(token_file, tls_ca, tls_cert, tls_key)
    _keep_kernels()
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


def farm(
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
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
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
    options = _options(hosts, seconds, local=local, default=_DEFAULT_HOST)
    credentials = _credentials(token_file, tls_ca, tls_cert, tls_key)
    _keep_kernels()
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


def doctor(
    hosts: Hosts = None,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    as_json: JsonFlag = False,
) -> None:
    """Find out why a harvester gets no answers: variables, names, ports, what listens there, TLS, version, clock.

    Changes nothing. Exit code 0 when nothing fails (warnings are fine), 5 when something does.

    Examples:

      gpupool recompute doctor

      gpupool recompute doctor 192.168.1.10:11989 --json
    """
    import asyncio
    import os

    from gpupool.cli.checks.finding import Verdict
    from gpupool.cli.checks.recompute import check_hosts, check_variables
    from gpupool.core.errors import GpupoolError
    from gpupool.recompute.variables import ChiaposVariables

    findings = list(check_variables(os.environ))
    try:
        variables = ChiaposVariables.from_environment()
    except GpupoolError:
        # That is among the findings already; hosts that were named can be asked all the same.
        variables = ChiaposVariables()
    chosen = _hosts(hosts, variables, default=_DEFAULT_HOST)
    credentials = _credentials(token_file, tls_ca, tls_cert, tls_key)
    findings += asyncio.run(check_hosts(chosen, variables, credentials))
    if as_json:
        print_plain_json({"findings": [finding.to_json() for finding in findings]})
    else:
        for finding in findings:
            typer.echo(f"{finding.verdict.value:4}  {finding.name}: {finding.measured}")
            if finding.why is not None:
                typer.echo(f"      {finding.why} {finding.remedy}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(_FAILED)


def env(
    hosts: Hosts = None,
    shell: Annotated[
        Shell | None, typer.Option(help="Where the line is typed [cmd on Windows, else sh].")
    ] = None,
    write_start_script: Annotated[
        bool,
        typer.Option(
            "--write-start-script", help="Write start_harvester.cmd or start_harvester.sh into this folder."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a start script that is there.")] = False,
) -> None:
    """Print the line that points a harvester at its servers, or write the harvester's start script.

    Examples:

      gpupool recompute env 192.168.1.10:11989,192.168.1.11

      gpupool recompute env 192.168.1.5:11989 --shell cmd --write-start-script
    """
    import os
    import sys

    from gpupool.recompute.start_script import VARIABLE, checked_hosts, environment_line, start_script

    chosen = shell or (Shell.CMD if sys.platform == "win32" else Shell.SH)
    value = checked_hosts(hosts or [os.environ.get(VARIABLE, "")])
    if not write_start_script:
        typer.echo(environment_line(chosen, value))
        return
    name, content = start_script(chosen, value)
    _write_script(Path(name), content, force=force)
    typer.echo(f"Wrote {name}. Put it beside the harvester's program and start the harvester with it.")


def _write_script(path: Path, content: bytes, *, force: bool) -> None:
    from gpupool.core.errors import ConflictError, EnvironmentProblemError

    try:
        with path.open("wb" if force else "xb") as file:
            file.write(content)
        if path.suffix == ".sh":
            path.chmod(0o755)
    except FileExistsError as error:
        raise ConflictError(f"{path} is there already.", remedy="Add --force to replace it.") from error
    except OSError as error:
        raise EnvironmentProblemError(
            f"{path} cannot be written: {error.strerror}.", remedy="Run this in a folder that you may write."
        ) from error


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


def _hosts(
    given: Sequence[str] | None, variables: "ChiaposVariables", default: str | None = None
) -> "tuple[Host, ...]":
    """Return the hosts of the command line, else of the variables, else the default, where there is one."""
    from gpupool.recompute.addresses import parse_list
    from gpupool.recompute.client.hosts import Host

    entries = parse_list(given or ())
    if not entries and not variables.recompute_hosts and default is not None:
        entries = (default,)
    if entries:
        return tuple(dict.fromkeys(Host.parse(entry, variables.recompute_port) for entry in entries))
    return tuple(Host(*address) for address in variables.recompute_hosts)


def _options(
    given: Sequence[str] | None, seconds: float | None, *, local: bool, default: str | None = None
) -> "ClientOptions":
    from gpupool.recompute.client.options import ClientOptions
    from gpupool.recompute.variables import ChiaposVariables

    variables = ChiaposVariables.from_environment()
    hosts = _hosts(given, variables, default)
    return ClientOptions.from_variables(variables, hosts=hosts, timeout_s=seconds, local_fallback=local)


def _credentials(
    token_file: Path | None, ca: Path | None, certificate: Path | None, key: Path | None
) -> "Credentials":
    from gpupool.recompute.client.credentials import Credentials

    return Credentials.read(token_file=token_file, ca=ca, certificate=certificate, key=key)


def _keep_kernels() -> None:
    """Let the verifier's compiled code be kept for the next run, in the user's own cache."""
    import os

    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "gpupool" / "numba"))


def _end_with(faults: "Sequence[GpupoolError]") -> None:
    """Say every fault; leave with the first one's exit code."""
    for fault in faults[1:]:
        typer.echo(f"Error [{fault.code}]: {fault.message}", err=True)
    if faults:
        raise faults[0]


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
