"""``gpupool uninstall``: remove what the pool has made on this machine."""

from typing import Annotated

import typer


def uninstall(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    keep_data: Annotated[
        bool,
        typer.Option("--keep-data", help="Keep database and keys, so that the next start goes on from them."),
    ] = False,
) -> None:
    """End what still runs from the state folder (GPUPOOL_HOME) and remove it; files it did not make stay.

    Refuses while `gpupool up` runs, and any folder that is not a state folder.

    Examples: `gpupool uninstall` · `gpupool uninstall --yes --keep-data`
    """
    from gpupool.cli.removal.folder import refuse_unfit, remove
    from gpupool.cli.removal.processes import end_everything
    from gpupool.cli.removal.words import farewell
    from gpupool.cli.up.preflight import AlreadyUpError, take_lock
    from gpupool.core.home import Home

    home = Home.from_environment()
    refuse_unfit(home)
    try:
        lock = take_lock(home)
    except AlreadyUpError as error:
        raise AlreadyUpError(
            error.message, remedy="Stop it with Ctrl-C in its terminal, then run this again."
        ) from error
    with lock:
        if not yes:
            kept = " except database and keys" if keep_data else ", with database and keys"
            typer.confirm(f"Remove {home.root}{kept}?", abort=True)
        ended = end_everything(home)
        if ended:
            typer.echo(f"ended {ended} processes that still ran")
        removed = remove(home, keep_data=keep_data)
    for line in farewell(home, removed):
        typer.echo(line)
