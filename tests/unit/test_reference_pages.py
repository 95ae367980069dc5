"""The reference pages of settings and commands are the ones that their generators write, and lack nothing."""

import runpy
from pathlib import Path
from typing import Any

import pytest


def load(checkout: Path, name: str) -> dict[str, Any]:
    return runpy.run_path(str(checkout / "scripts" / f"generate_{name}_page.py"))


@pytest.mark.parametrize("name", ["settings", "cli", "proxy_metrics"])
def test_the_page_is_up_to_date(checkout: Path, name: str) -> None:
    generator = load(checkout, name)
    assert generator["PAGE"].read_text() == generator["page"](), (
        f"run `python scripts/generate_{name}_page.py`"
    )


def test_every_setting_says_what_it_is(checkout: Path) -> None:
    generator = load(checkout, "settings")
    for kind in generator["SECTIONS"].values():
        own = {name for name in kind.model_fields if name in vars(kind).get("__annotations__", {})}
        assert own == set(generator["documented"](kind))


def test_every_command_and_every_option_says_what_it_does(checkout: Path) -> None:
    """The first sentence stands in the list of commands, so it is one; an option without help is a riddle."""
    found = dict(load(checkout, "cli")["commands"]())
    assert {"gpupool up", "gpupool status", "gpupool doctor", "gpupool chute deploy"} <= set(found)
    for name, command in found.items():
        assert (command.help or "").strip(), name
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert parameter.help or parameter.envvar, f"{name} {parameter.opts}"
