"""``gpupool control``: run the control process."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The control process: API, store, scheduler.", no_args_is_help=True)


@app.callback()
def control() -> None:
    """Run the control process: API, store, scheduler."""


@app.command()
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [default: 127.0.0.1; GPUPOOL_CONTROL_HOST].")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port; 0 takes a free one [default: 32000; GPUPOOL_CONTROL_PORT]."
        ),
    ] = None,
    home: Annotated[Path | None, typer.Option(help="State folder [GPUPOOL_HOME].")] = None,
) -> None:
    """Serve the control API until SIGTERM or Ctrl-C.

    Examples: `gpupool control serve` · `gpupool control serve --port 0 --home /tmp/pool`
    """
    from gpupool.control.main import run
    from gpupool.control.settings import load_settings

    run(load_settings(control_host=host, control_port=port, home=home))
