"""``gpupool market``: the embedded market, for pools that need no outside validator."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="The embedded market: apps, launches, bounties and pay of a pool of one's own.", no_args_is_help=True
)


@app.callback()
def root() -> None:
    """The embedded market."""


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
