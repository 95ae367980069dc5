"""The command ``chia_recompute_server``: our server under the name, flags and defaults of the original.

It answers our own clients, the harvester shim and Bladebit-compressed plots. Gigahorse's own clients speak a closed
protocol; where the original program is installed, this command starts that one.
"""

import sys
from typing import Annotated

import typer

from gpupool.cli import recompute_flags as flags
from gpupool.cli.original_programs import yield_to_original
from gpupool.cli.shared_options import takes_groups
from gpupool.core.errors import GpupoolError
from gpupool.core.standard_streams import open_missing

NAME = "chia_recompute_server"
app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
@takes_groups
def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is open to the network.")
    ] = "0.0.0.0",  # noqa: S104
    listen: flags.ListenOptions,
    guard: flags.GuardOptions,
) -> None:
    """Recover proof bits of compressed plots for harvesters, until stopped (gpupool's drop-in)."""
    flags.start(listen, recompute_host=host, **guard.settings())


def main() -> None:
    """Run the command; print a fault as what happened and what to do next, and exit with its code."""
    open_missing()
    try:
        yield_to_original(NAME, sys.argv[1:], "gpupool recompute serve")
        app(prog_name=NAME)
    except GpupoolError as error:
        typer.echo(f"Error [{error.code}]: {error.message}\n  What to do: {error.remedy}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
