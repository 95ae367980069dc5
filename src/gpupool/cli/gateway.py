"""``gpupool gateway``: the OpenAI-compatible address of the pool."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The OpenAI-compatible address in front of the pool's chutes.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """The OpenAI-compatible address in front of the pool's chutes."""


@app.command()
def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on [127.0.0.1]; others than loopback need the API key."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [32080]; 0 takes a free one.")] = None,
    control: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of control [http://127.0.0.1:32000].")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token for the endpoints feed [keys/service.token].")
    ] = None,
    require_key: Annotated[
        bool | None, typer.Option(help="Whether clients need the API key [only beyond loopback].")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="State folder [GPUPOOL_HOME].")] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Serve chat, completions and embeddings of every openai chute until stopped."""
    from pydantic import ValidationError

    from gpupool.contracts.problems import describe
    from gpupool.core.errors import InvalidInputError
    from gpupool.gateway.main import run
    from gpupool.gateway.settings import GatewaySettings

    given = {
        "gateway_host": host,
        "gateway_port": port,
        "control_url": control,
        "gateway_token_file": token_file,
        "gateway_require_key": require_key,
        "home": home,
        "log_level": log_level,
    }
    try:
        settings = GatewaySettings.model_validate(
            {key: value for key, value in given.items() if value is not None}
        )
    except ValidationError as error:
        raise InvalidInputError(f"The gateway's settings are not valid: {describe(error)}.") from error
    run(settings)
