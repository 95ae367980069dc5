"""A group of options reaches a command as one object, and its options appear on each command that takes it."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from gpupool.cli.recompute import app as recompute
from gpupool.cli.recompute_server_dropin import app as dropin
from gpupool.cli.shared_options import takes_groups


@dataclass(frozen=True, kw_only=True)
class Colours:
    """Two options."""

    front: Annotated[str, typer.Option("--front", "-f", help="In front.")] = "black"
    back: Annotated[str | None, typer.Option(help="Behind.")] = None


def an_app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @takes_groups
    def paint(wall: str, *, colours: Colours, times: int = 1) -> None:
        """Paint a wall."""
        typer.echo(f"{wall} {colours} {times}")

    return app


def test_what_is_given_and_what_is_not_arrives_in_the_group() -> None:
    told = CliRunner().invoke(an_app(), ["north", "-f", "red", "--times", "2"])
    assert told.output == f"north {Colours(front='red')} 2\n"
    assert (
        CliRunner().invoke(an_app(), ["north", "--back", "blue"]).output
        == f"north {Colours(back='blue')} 1\n"
    )


def test_the_help_shows_the_options_in_their_order() -> None:
    shown = CliRunner().invoke(an_app(), ["--help"]).output
    assert "Paint a wall." in shown
    assert shown.index("--front") < shown.index("Behind.") < shown.index("--times")


def test_the_server_has_every_option_of_its_drop_in() -> None:
    commands = vars(typer.main.get_command(recompute))["commands"]
    served = {name for option in commands["serve"].params for name in option.opts}
    dropped = {name for option in typer.main.get_command(dropin).params for name in option.opts}
    assert {"-p", "-r", "-G", "-O", "-g", "-c", "--token-file", "--client-ca"} <= dropped <= served
