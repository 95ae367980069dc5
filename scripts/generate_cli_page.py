"""Write the reference page of the command line from the commands themselves, so that the two can't differ.

Run `python scripts/generate_cli_page.py` after a change of a command; a test compares the page with it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from gpupool.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, in the order of the help."""
    yield from _below("gpupool", get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, child in below.items():
        yield from _below(f"{name} {word}", child)


def page() -> str:
    """Return the page as Markdown."""
    found = list(commands())
    lines = [
        "# Commands",
        "",
        "Every command takes `--help`. Exit codes: [errors](errors.md). Settings by variable: [settings](settings.md).",
        "",
        "<!-- Made by scripts/generate_cli_page.py; edits here are lost. -->",
        "",
        *(f"- [`{name}`](#{name.replace(' ', '-')}): {_summary(command)}" for name, command in found),
        "",
    ]
    for name, command in found:
        lines += [f"## {name}", "", _help(command), "", *_parameters(command)]
    return "\n".join(lines)


def _summary(command: Any) -> str:
    return " ".join(_help(command).split("\n\n")[0].split())


def _help(command: Any) -> str:
    return str(command.help or "").strip()


def _parameters(command: Any) -> list[str]:
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    if not shown:
        return []
    rows = [f"| {_names(one)} | {_default(one)} | {_meaning(one)} |" for one in shown]
    return ["| option | default | meaning |", "| --- | --- | --- |", *rows, ""]


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    shown, value = getattr(parameter, "show_default", None), parameter.default
    if isinstance(shown, str):
        return f"`{shown}`"
    if parameter.required:
        return "required"
    if value is None or isinstance(value, bool):
        return "yes" if value else "-"
    return f"`{value}`"


def _meaning(parameter: Any) -> str:
    text = " ".join((getattr(parameter, "help", None) or "").split())
    variable = getattr(parameter, "envvar", None)
    told = f"{text} Also `{variable}`." if variable else text
    return (told.strip() or "-").replace("|", "\\|")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "200"
    PAGE.write_text(page())
