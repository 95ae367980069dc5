"""The lock files: complete, from one resolution, and silent about where anything was fetched."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

LOCKS = ("base", "up", "all")
EVERY = (*LOCKS, "chia", "chutes")
PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>\S+)(?: ; (?P<marker>.*?))? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def lines(checkout: Path, lock: str) -> list[str]:
    return (checkout / "locks" / f"{lock}.txt").read_text().splitlines()


def pins(checkout: Path, lock: str) -> set[tuple[str, str]]:
    return {(m["name"], m["version"]) for m in map(PIN.match, lines(checkout, lock)) if m}


@pytest.mark.parametrize("lock", EVERY)
def test_a_lock_is_pins_with_hashes_and_nothing_else(checkout: Path, lock: str) -> None:
    """So no address, no file path, no index option and no editable line can hide in it."""
    strange = [line for line in lines(checkout, lock) if not (PIN.match(line) or HASH.match(line))]
    assert strange == []


@pytest.mark.parametrize("lock", EVERY)
def test_a_lock_names_no_address(checkout: Path, lock: str) -> None:
    text = (checkout / "locks" / f"{lock}.txt").read_text()
    assert not re.search(r"://|file:|^--|^-", text, re.MULTILINE)


@pytest.mark.parametrize("lock", EVERY)
def test_every_pin_has_a_hash(checkout: Path, lock: str) -> None:
    content = lines(checkout, lock)
    assert content
    for line, following in zip(content, [*content[1:], ""], strict=True):
        if PIN.match(line):
            assert HASH.match(following), line


@pytest.mark.parametrize("lock", EVERY)
def test_no_pin_on_linux_hangs_on_a_python_version(checkout: Path, lock: str) -> None:
    """Ubuntu 22.04's Python is 3.11.0rc1, which pip counts as neither below nor above 3.12: it would get neither."""
    markers = [m["marker"] for m in map(PIN.match, lines(checkout, lock)) if m and m["marker"]]
    assert [
        one for one in markers if re.search("python_(full_)?version", one) and "sys_platform == " not in one
    ] == []


def test_the_smaller_locks_are_cut_from_the_whole(checkout: Path) -> None:
    base, up, everything = (pins(checkout, lock) for lock in LOCKS)
    assert base < up < everything


def test_the_base_stays_small(checkout: Path) -> None:
    assert 20 < len(pins(checkout, "base")) < 60


def test_every_requirement_of_the_project_is_locked(checkout: Path) -> None:
    """A dependency that was added without `make lock` is missing on every machine but its author's."""
    table = tomllib.loads((checkout / "pyproject.toml").read_text())
    project = table["project"]
    extras = project["optional-dependencies"]
    wanted = {
        "base": project["dependencies"],
        "up": [*project["dependencies"], *extras["recompute"], *extras["demo"]],
        "all": [
            *project["dependencies"],
            *chain.from_iterable(extras.values()),
            *table["dependency-groups"]["dev"],
        ],
    }
    for lock, requirements in wanted.items():
        names = {re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0].lower() for one in requirements}
        assert names <= {name for name, _ in pins(checkout, lock)}, lock
