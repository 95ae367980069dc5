"""What the documentation tells a reader to type, open or deploy exists, in English and in Chinese alike."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.exceptions import TyperException
from typer.main import get_command

from gpupool.cli.main import app
from gpupool.contracts.spec import parse_spec

CHECKOUT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")])
EXAMPLES = sorted((CHECKOUT / "examples").glob("*.yaml"))
UNITS = sorted((CHECKOUT / "deploy" / "systemd").glob("*.service"))
TRANSLATED = [
    "README.md",
    "how-to/alerts.md",
    "tutorials/first-pool.md",
    "tutorials/hundred-harvesters.md",
    "how-to/gpu-pool-for-your-farm.md",
    "how-to/harvester-setup.md",
    "how-to/keep-the-state.md",
    "how-to/measure-a-machine.md",
    "how-to/nodes.md",
    "how-to/recompute-for-a-farm.md",
    "how-to/run-a-market.md",
    "how-to/secure-recompute.md",
    "how-to/several-controls.md",
    "how-to/v2-solver-pool.md",
    "how-to/share-the-pool.md",
    "how-to/use-chutes-miner-cli.md",
    "how-to/watch-a-proxy.md",
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ASSIGNMENT = re.compile(r"^[A-Z_]+=")
SHELL_WORDS = {"|", "||", "&&", "&", ";", ">", ">>", "<"}
SCRIPT_OPTIONS = set(re.findall(r"^(--[a-z-]+)\)$", (CHECKOUT / "up").read_text(), re.MULTILINE))
"""Of the script `up` itself; all others are those of `gpupool up`."""
ELLIPSES = {"...", "…"}


class Command(NamedTuple):
    """A command of ours as some page names it."""

    words: tuple[str, ...]
    whole: bool
    """Of a code block, to be typed as it stands; else named in a sentence, perhaps without its arguments."""


def name_of(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def blocks(text: str, *kinds: str) -> list[str]:
    return [body for kind, body in FENCE.findall(text) if kind in kinds]


def typed_lines(text: str) -> list[str]:
    """Return what a page has its reader type: the lines of `sh` blocks, and those after `$` of `console` blocks."""
    lines = [line for body in blocks(text, "sh") for line in body.replace("\\\n", " ").splitlines()]
    told = [line for body in blocks(text, "console") for line in body.replace("\\\n", " ").splitlines()]
    return [*lines, *(line[2:] for line in told if line.startswith("$ "))]


def commands_in(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of every `gpupool` and `./up` of a shell line."""
    reader = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    reader.whitespace_split = True
    try:
        words = list(reader)
    except ValueError:
        return  # a sentence's code with a lone quote: no shell line
    while words:
        part = list(takewhile(lambda word: word not in SHELL_WORDS, words))
        words = words[len(part) + 1 :]
        yield from own_command(part)


def own_command(words: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield the arguments where a simple command is ours."""
    while words and (ASSIGNMENT.match(words[0]) or words[0] in {"sudo", "runuser", "env", "--", "-u"}):
        words = words[2:] if words[0] == "-u" else words[1:]
    if words and words[0] in {"./up", "/opt/gpupool/up"}:
        yield ("up", *(word for word in words[1:] if word not in SCRIPT_OPTIONS))
    elif words and Path(words[0]).name == "gpupool" and len(words) > 1:
        yield tuple(words[1:])


def commands(text: str) -> list[Command]:
    """Return every command of ours that a page names."""
    found = [Command(words, whole=True) for line in typed_lines(text) for words in commands_in(line)]
    sentences = FENCE.sub("", text)
    found += [
        Command(words, whole=False) for code in INLINE.findall(sentences) for words in commands_in(code)
    ]
    return [command for command in found if not ELLIPSES & set(command.words)]


def fault_of(command: Command) -> str | None:
    """Return what the command line itself would say against a command; None where it takes it."""
    node: Any = get_command(app)
    words = list(command.words)
    while hasattr(node, "commands") and words and not words[0].startswith("-"):
        if words[0] not in node.commands:
            return f"no command {words[0]!r}"
        node = node.commands[words.pop(0)]
    if hasattr(node, "commands"):
        return None if words in ([], ["--help"], ["--version"]) else f"not an option: {words}"
    if words == ["--help"]:
        return None
    required = [one for one in node.params if one.required]
    needed = ["1" for one in required if one.param_type_name == "argument"]
    needed += [word for one in required if one.param_type_name == "option" for word in (one.opts[0], "1")]
    complete = words if command.whole else [*words, *needed]
    faults = []
    for attempt in (words, complete):
        try:
            node.make_context("gpupool", list(attempt))
        except TyperException as error:
            faults.append(str(error))
    return faults[0] if len(faults) == 2 else None


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings as links write them."""
    titles = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_into_the_checkout_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), f"{name_of(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(aim), f"{name_of(page)} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_command_line_takes_every_command_that_a_page_names(page: Path) -> None:
    for command in commands(page.read_text()):
        fault = fault_of(command)
        assert fault is None, f"{name_of(page)}: gpupool {' '.join(command.words)}: {fault}"


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        (".venv/bin/gpupool chute deploy my-app.yaml --no-wait", False),
        (
            "sudo -u gpupool GPUPOOL_HOME=/var/lib/gpupool /opt/gpupool/.venv/bin/gpupool status --json | jq .",
            False,
        ),
        ("./up --once --control-port 32100", False),
        ("./up --install-only", False),
        ("./up --install-everything", True),
        ("gpupool chute deploy", True),
        ("gpupool chute deploy a.yaml b.yaml", True),
        ("gpupool chute undeploy my-app", True),
        ("gpupool chute list --colour", True),
        ("true && gpupool recompute check --level 9", True),
    ],
)
def test_a_command_is_found_in_its_line_and_held_against_the_command_line(line: str, refused: bool) -> None:
    (words,) = commands_in(line)
    assert (fault_of(Command(words, whole=True)) is not None) == refused


def test_a_sentence_may_leave_arguments_out_but_not_make_options_up() -> None:
    assert fault_of(Command(("chute", "deploy"), whole=False)) is None
    assert fault_of(Command(("chute", "deploy", "--soon"), whole=False)) is not None
    assert list(commands_in("systemctl status gpupool")) == []


def test_the_pages_name_the_commands_that_a_newcomer_needs() -> None:
    """So that a change of the pages' form cannot hide all commands from the test above."""
    named = {command.words[:2] for page in PAGES for command in commands(page.read_text()) if command.whole}
    assert {("up",), ("status",), ("doctor",), ("chute", "deploy"), ("recompute", "check")} <= named


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_every_example_is_a_workload_spec(example: Path) -> None:
    parse_spec(example.read_text(), example.name)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text(), "yaml")], ids=name_of)
def test_every_yaml_block_is_a_workload_spec(page: Path) -> None:
    for body in blocks(page.read_text(), "yaml"):
        parse_spec(body, name_of(page))


def test_the_examples_differ_in_name_from_each_other_and_from_the_demo() -> None:
    names = [parse_spec(path.read_text()).name for path in EXAMPLES]
    assert len(set(names)) == len(names) >= 3
    assert not {"demo-chat", "recompute"} & set(names)


@pytest.mark.parametrize("name", TRANSLATED)
def test_both_languages_type_the_same(name: str) -> None:
    """The same commands in the same order, examples included; what is printed may be shortened differently."""
    english = CHECKOUT / name if name == "README.md" else CHECKOUT / "docs" / name
    chinese = CHECKOUT / "docs" / "zh" / name
    own, other = english.read_text(), chinese.read_text()
    assert [without_comment(line) for line in typed_lines(own)] == [
        without_comment(line) for line in typed_lines(other)
    ]
    assert set(commands(own)) == set(commands(other))


def without_comment(line: str) -> str:
    return line.partition(" #")[0].strip()


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_a_service_starts_a_command_that_exists_from_the_folder_that_it_keeps(unit: Path) -> None:
    lines = [line.partition("=") for line in unit.read_text().splitlines() if line[:1].isalpha()]
    settings = {name: value for name, _, value in lines if name != "Environment"}
    (words,) = commands_in(settings["ExecStart"].replace(" $OPTIONS", ""))
    assert fault_of(Command(words, whole=True)) is None
    if words[:2] == ("solver", "attach"):
        assert "StateDirectory" not in settings  # it runs as a farmer's user and keeps nothing
        return
    assert settings["StateDirectory"] == "gpupool"
    assert settings["StateDirectoryMode"] == "0700"
    assert "GPUPOOL_HOME=/var/lib/gpupool" in [value for name, _, value in lines if name == "Environment"]
