"""``gpupool backup``, ``restore`` and ``database move``: the pool's state in one file, and from one database to another."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpupool.cli.output import JsonFlag, print_plain_json

if TYPE_CHECKING:
    from gpupool.core.home import Home
    from gpupool.store.open import Where

app = typer.Typer(help="The database that holds the pool's state.", no_args_is_help=True)


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")],
    as_json: JsonFlag = False,
) -> None:
    """Write the pool's whole state, with its keys, into one file. Works while the pool does.

    The file is as secret as the keys in it, and readable by you only. Models, compiled kernels, logs and the keys of
    agents are not in it: they come back by themselves.

    Examples: `gpupool backup pool-2026-12-01.zip` · `GPUPOOL_DATABASE_URL=postgresql://… gpupool backup pool.zip`
    """
    from gpupool.cli.state.saving import save
    from gpupool.core.home import Home

    home = Home.from_environment()
    saved = save(home, configured(home), file, _progress(as_json))
    if as_json:
        print_plain_json(saved)
        return
    typer.echo(
        f"{file}: {saved['rows']} rows, {saved['keys']} keys, {saved['bytes']} bytes; keep it as you keep keys."
    )


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `gpupool backup` wrote.")],
    as_json: JsonFlag = False,
) -> None:
    """Bring a pool back from a backup, into a state folder (GPUPOOL_HOME) and a database that hold none.

    The backup is checked from end to end first; a restore that fails or is broken off changes nothing. The database is
    the file in the state folder, or an empty one at GPUPOOL_DATABASE_URL. Agents find the pool again by themselves
    where its address is the same.

    Examples: `GPUPOOL_HOME=/var/lib/gpupool gpupool restore pool.zip`
    """
    from gpupool.cli.state.restoring import bring_back
    from gpupool.core.home import Home

    home = Home.from_environment()
    with _pool_down(home):
        restored = bring_back(home, configured(home), file, _progress(as_json))
    if as_json:
        print_plain_json(restored)
        return
    typer.echo(
        f"{file}, made at {restored['made_at']}: {restored['rows']} rows and {restored['keys']} keys are back."
    )


@app.command("move")
def move(as_json: JsonFlag = False) -> None:
    """Move the state from the SQLite file in the state folder to the empty PostgreSQL database at GPUPOOL_DATABASE_URL.

    The pool must be down. The file stays beside, renamed; a start without GPUPOOL_DATABASE_URL is refused from then on.

    Examples: `GPUPOOL_DATABASE_URL=postgresql://gpupool@db/pool gpupool database move`
    """
    from gpupool.cli.state.moving import move_to_postgres
    from gpupool.core.home import Home

    home = Home.from_environment()
    with _pool_down(home):
        moved = move_to_postgres(home, configured(home), _progress(as_json))
    if as_json:
        print_plain_json(moved)
        return
    typer.echo(f"{moved['rows']} rows are in {moved['to']} now; the old file is {moved['kept']}.")
    typer.echo("Start the pool with the same GPUPOOL_DATABASE_URL from now on.")


def configured(home: "Home") -> "Where":
    """Return the database that GPUPOOL_DATABASE_URL names, else the file in the state folder."""
    import os

    from gpupool.store.postgres_url import VARIABLE, parse_postgres_url

    url = os.environ.get(VARIABLE)
    return parse_postgres_url(url) if url else home.database


@contextmanager
def _pool_down(home: "Home") -> "Iterator[None]":
    from gpupool.cli.up.preflight import take_lock
    from gpupool.control.main import alone

    home.prepare()
    with take_lock(home), alone(home):
        yield


def _progress(quiet: bool) -> Callable[[str, int], None]:
    """Return what says each table as it is done; nothing for scripts."""

    def told(table: str, rows: int) -> None:
        if not quiet and rows:
            typer.echo(f"  {table}: {rows}", err=True)

    return told
