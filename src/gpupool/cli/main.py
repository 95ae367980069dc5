"""The ``gpupool`` command: a tree of nouns, and the one place where errors become words and exit codes.

Exit codes: 0 done, 1 internal, 2 bad input, 3 this machine or its set-up, 4 not found, 5 conflict, 6 not allowed,
7 busy, 8 not reachable, 9 deadline, 130 stopped by a second Ctrl-C.
"""

import gc
import sys
from typing import Annotated

import typer

from gpupool import __version__
from gpupool.cli import (
    agent,
    alerts,
    audit,
    backup,
    chute,
    control,
    deployment,
    doctor,
    events,
    gateway,
    gpu,
    harvester,
    hotkey,
    market,
    node,
    recompute,
    solver,
    status,
    support_bundle,
    token,
    uninstall,
    why,
)
from gpupool.cli.invocation import as_typed
from gpupool.cli.up import command as up
from gpupool.core.errors import GpupoolError, InvalidInputError
from gpupool.core.standard_streams import open_missing, put_failures_in_words

app = typer.Typer(
    name="gpupool",
    help="Put idle GPUs to work: serve inference apps, recompute proof bits.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("support-bundle")(support_bundle.support_bundle)
app.command("uninstall")(uninstall.uninstall)
app.command("events")(events.events)
app.command("audit")(audit.audit)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.add_typer(backup.app, name="database")
app.add_typer(chute.app, name="chute")
app.add_typer(deployment.app, name="deployment")
app.add_typer(node.app, name="node")
app.add_typer(token.app, name="token")
app.add_typer(hotkey.app, name="hotkey")
app.add_typer(why.app, name="why")
app.add_typer(gpu.app, name="gpu")
app.add_typer(alerts.app, name="alerts")
app.add_typer(control.app, name="control")
app.add_typer(agent.app, name="agent")
app.add_typer(gateway.app, name="gateway")
app.add_typer(recompute.app, name="recompute")
app.add_typer(market.app, name="market")
app.add_typer(harvester.app, name="harvester")
app.add_typer(solver.app, name="solver")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"gpupool {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Put idle GPUs to work: serve inference apps, recompute proof bits.

    Start everything on this machine with `gpupool up`, then look with `gpupool status`.
    """


def _say_if_no_text(error: UnicodeEncodeError) -> None:
    """Exit with words where an argument holds bytes that are no text; raise ``error`` again where it is not that."""
    odd = next((given for given in sys.argv[1:] if not _is_text(given)), None)
    if odd is None:
        raise error
    shown = odd.encode("ascii", "backslashreplace").decode()
    typer.echo(f"Error [invalid_input]: The argument {shown} is not UTF-8 text.", err=True)
    typer.echo("  What to do: Type it anew, in a terminal that uses UTF-8.", err=True)
    sys.exit(InvalidInputError.exit_code)


def _is_text(given: str) -> bool:
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def _run() -> None:
    try:
        app(prog_name="gpupool")
    finally:
        sys.stdout.flush()


def main() -> None:
    """Run the command line; print a fault as what happened and what to do next, and exit with its code."""
    open_missing()
    put_failures_in_words()
    try:
        _run()
    except GpupoolError as error:
        told = f"Error [{error.code}]: {error.message}\n  What to do: {error.remedy}"
        typer.echo(as_typed(told), err=True)
        sys.exit(error.exit_code)
    except UnicodeEncodeError as error:
        _say_if_no_text(error)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # All memory goes back at once. Looking for cycles in it first takes a server up to 0.4 s.
        gc.freeze()
