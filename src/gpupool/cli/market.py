"""``gpupool market``: the embedded market, for pools that need no outside validator."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.cli.market_ledger import By
from gpupool.cli.output import JsonFlag

if TYPE_CHECKING:
    from gpupool.contracts.market import MarketChuteView
    from gpupool.contracts.market_client import MarketClient

app = typer.Typer(
    help="The embedded market: apps, launches, bounties and pay of a pool of one's own.", no_args_is_help=True
)


URL_VARIABLE: Final = "GPUPOOL_MARKET_URL"
_DEFAULT_URL: Final = "http://127.0.0.1:32010"
_DAY: Final = 86_400.0
MarketOption = Annotated[
    str | None,
    typer.Option(
        "--market",
        envvar=URL_VARIABLE,
        metavar="URL",
        help="Address of the market; left out, the one that runs from GPUPOOL_HOME.",
    ),
]
Chute = Annotated[str, typer.Argument(help="The chute's name or id.")]


@app.callback()
def root() -> None:
    """The embedded market."""


def _connect(url: str | None) -> "MarketClient":
    from gpupool.cli.connect import operator_token, url_of
    from gpupool.contracts.market_client import MarketClient
    from gpupool.core.home import Home

    home = Home.from_environment()
    return MarketClient(url_of("market", url, home, _DEFAULT_URL), operator_token(home))


def _find(client: "MarketClient", name: str) -> "MarketChuteView":
    from gpupool.core.errors import NotFoundError

    for chute in client.chutes():
        if name in {chute.chute_id, chute.name}:
            return chute
    raise NotFoundError(f"The market has no chute {name[:100]!r}.", remedy="See `gpupool market list`.")


@app.command("list")
def list_chutes(market: MarketOption = None, as_json: JsonFlag = False) -> None:
    """List the catalog: what is wanted of each chute, and how many instances there are.

    Example: `gpupool market list`
    """
    from gpupool.cli.output import print_json, print_table

    with _connect(market) as client:
        chutes = client.chutes()
    if as_json:
        print_json(chutes)
        return
    print_table(
        "Chutes",
        ("NAME", "INSTANCES", "WANTED", "IMAGE", "ID", "MODELS"),
        ((c.name, c.instances, c.target, c.image, c.chute_id, ", ".join(c.supported_gpus)) for c in chutes),
        "none; publish one with `gpupool market publish FILE`",
        below=("MODELS",),
    )


@app.command()
def image(
    reference: Annotated[str, typer.Argument(help="USER/NAME:TAG.")],
    market: MarketOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make an image known, or say that it was built anew: miners pull it again then.

    Example: `gpupool market image ada/vllm:0.9.1`
    """
    from gpupool.cli.output import print_json
    from gpupool.core.errors import InvalidInputError

    user, slash, rest = reference.partition("/")
    name, colon, tag = rest.partition(":")
    if not (slash and colon):
        raise InvalidInputError(f"{reference!r:.200} is no image.", remedy="Give it as USER/NAME:TAG.")
    with _connect(market) as client:
        made = client.publish_image(user, name, tag)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"{made.image}: published")


@app.command()
def publish(
    file: Annotated[Path, typer.Argument(help="A chute in YAML; `code_file` names the file with its code.")],
    market: MarketOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Publish a chute, or change the one of that owner and name: instances of the old version are replaced.

    Example: `gpupool market publish examples/market/hello.yaml`
    """
    from gpupool.cli.market_chute_file import read_chute
    from gpupool.cli.output import print_json

    chute = read_chute(file)
    with _connect(market) as client:
        made = client.publish(chute)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"{made.name}: published, version {made.version}, for {', '.join(made.supported_gpus)}")


@app.command()
def scale(
    name: Chute,
    target: Annotated[int, typer.Argument(min=0, max=1000, help="Instances wanted.")],
    market: MarketOption = None,
) -> None:
    """Want another number of instances of a chute.

    Example: `gpupool market scale my-app 3`
    """
    with _connect(market) as client:
        client.set_target(_find(client, name).chute_id, target)
    typer.echo(f"{name}: {target} wanted")


@app.command()
def withdraw(
    name: Chute,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    market: MarketOption = None,
) -> None:
    """Take a chute out of the catalog; its instances end.

    Example: `gpupool market withdraw my-app --yes`
    """
    with _connect(market) as client:
        chute = _find(client, name)
        if not yes:
            typer.confirm(f"Withdraw {chute.name} with {chute.instances} instance(s)?", abort=True)
        client.withdraw(chute.chute_id)
    typer.echo(f"{chute.name}: withdrawn")


@app.command()
def job(
    name: Chute,
    method: Annotated[str, typer.Argument(help="Which of the chute's jobs.")],
    arguments: Annotated[str, typer.Argument(help="Its arguments, as a JSON object.")] = "{}",
    market: MarketOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Have a job of a chute run once.

    Example: `gpupool market job trainer train '{"epochs": 3}'`
    """
    import json

    from gpupool.cli.output import print_json
    from gpupool.core.errors import InvalidInputError

    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidInputError(
            "The arguments are no JSON object.", remedy="Give them as '{\"name\": value}'."
        )
    with _connect(market) as client:
        made = client.ask(_find(client, name).chute_id, method, given)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"{made.job_id}: waits for a miner; see `gpupool market jobs`")


@app.command()
def jobs(market: MarketOption = None, as_json: JsonFlag = False) -> None:
    """List the jobs, with who has them and how they ended.

    Example: `gpupool market jobs --json`
    """
    from gpupool.cli.output import print_json, print_table

    with _connect(market) as client:
        found = client.jobs()
        names = {chute.chute_id: chute.name for chute in client.chutes()}
    if as_json:
        print_json(found)
        return
    print_table(
        "Jobs",
        ("ID", "CHUTE", "JOB", "STATE", "MINER", "ASKED", "ENDED"),
        (
            (
                j.job_id,
                names.get(j.chute_id, j.chute_id),
                j.method,
                j.status,
                j.miner_hotkey,
                j.created_at,
                j.finished_at,
            )
            for j in found
        ),
        "none; ask for one with `gpupool market job CHUTE JOB`",
    )


@app.command()
def ledger(
    by: Annotated[By, typer.Option(help="Sum by this.")] = By.DAY,
    days: Annotated[float, typer.Option(min=0.001, help="The last so many days.")] = 7.0,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    market: MarketOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what the market has paid: GPU hours, compute units, money; of instances that run, up to the last full hour.

    Examples: `gpupool market ledger --by server` · `gpupool market ledger --days 30 --csv`
    """
    import time

    from gpupool.cli.market_ledger import as_csv as csv_of
    from gpupool.cli.market_ledger import sums, total
    from gpupool.cli.output import print_plain_json, print_table

    now = time.time()
    with _connect(market) as client:
        lines = client.ledger(now - days * _DAY, now)
        names = {chute.chute_id: chute.name for chute in client.chutes()}
    entries = sums(lines, by, names)
    if as_json:
        print_plain_json([entry.plain() for entry in entries])
    elif as_csv:
        typer.echo(csv_of(entries), nl=False)
    else:
        print_table(
            "Ledger",
            (by.value.upper(), "GPU HOURS", "UNITS", "COMPUTE USD", "BOUNTY USD", "USD"),
            (
                (
                    entry.name,
                    f"{entry.gpu_hours:.2f}",
                    f"{entry.units:.1f}",
                    f"{entry.compute_usd:.4f}",
                    f"{entry.bounty_usd:.4f}",
                    f"{entry.usd:.4f}",
                )
                for entry in ([*entries, total(entries)] if entries else [])
            ),
            "nothing was earned in this time",
        )


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [32010]; 0 takes a free one.")] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where miners and instances reach it [the address listened on]."),
    ] = None,
    miner: Annotated[
        list[str] | None,
        typer.Option(metavar="SS58", help="A hotkey that may take part; repeatable [every one may]."),
    ] = None,
    home: Annotated[Path | None, typer.Option(help="State folder [GPUPOOL_HOME].")] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Serve the validator's side of the Chutes protocol until stopped.

    Examples: `gpupool market serve` ·
    `gpupool market serve --host 10.0.0.5 --miner 5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY`
    """
    from pydantic import ValidationError

    from gpupool.contracts.problems import describe
    from gpupool.core.errors import EnvironmentProblemError, InvalidInputError

    try:
        from gpupool.market.main import run
        from gpupool.market.settings import MarketSettings
    except ModuleNotFoundError as error:
        raise EnvironmentProblemError(
            f"The market needs {error.name}, which is not installed.",
            remedy="Install it: pip install 'gpupool[validator]'.",
        ) from error

    given = {
        "market_host": host,
        "market_port": port,
        "market_url": url,
        "market_miners": ",".join(miner) if miner else None,
        "home": home,
        "log_level": log_level,
    }
    try:
        settings = MarketSettings.model_validate(
            {key: value for key, value in given.items() if value is not None}
        )
    except ValidationError as error:
        raise InvalidInputError(f"The market's settings are not valid: {describe(error)}.") from error
    run(settings)
