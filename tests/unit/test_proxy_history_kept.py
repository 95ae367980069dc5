"""The history of clients and nodes outlives the process, and a broken file costs no more than itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpupool.recompute.proxy.memory import Memory, load
from gpupool.recompute.proxy.tallies import Tallies

WALL, NOW = 1_800_000_030.0, 500.0


def used() -> Tallies:
    tallies = Tallies(120, lambda: WALL)
    for minute in range(6):
        for number in range(10):
            tallies.ended("10.0.0.1", "n:1", "frames", 20.0, "ok", 1, NOW - 400 + minute * 60 + number * 6)
        tallies.minute(WALL - 400 + minute * 60)
    tallies.ended("10.0.0.2", "-", "http", 4500.0, "deadline", 3, NOW - 5)
    tallies.refused("10.0.0.2", NOW)
    return tallies


async def kept(path: Path) -> Tallies:
    tallies = used()
    await Memory(path, tallies).save(WALL, NOW)
    return tallies


async def test_what_was_counted_is_there_again(tmp_path: Path) -> None:
    before, after = await kept(tmp_path / "h"), Tallies(120, lambda: WALL)
    load(tmp_path / "h", after)
    old, new = before.clients["10.0.0.1"], after.clients["10.0.0.1"]
    assert (new.requests, new.first, new.minutes, new.pause) == (60, old.first, 6, old.pause)
    assert new.regular
    assert new.seen == WALL - (NOW - old.last)
    assert new.history.hours.points() == old.history.hours.points()
    assert after.clients["10.0.0.2"].refused == 1
    assert after.nodes["n:1"].history.minutes.points() == before.nodes["n:1"].history.minutes.points()
    assert (tmp_path / "h").stat().st_mode & 0o077 == 0


async def test_what_came_before_it_was_read_is_added_and_not_counted_twice(tmp_path: Path) -> None:
    await kept(tmp_path / "h")
    tallies = Tallies(120, lambda: WALL + 60)
    tallies.ended("10.0.0.1", "n:1", "frames", 5.0, "ok", 1, 1.0)
    load(tmp_path / "h", tallies)
    client = tallies.clients["10.0.0.1"]
    assert (client.requests, client.first, client.frames) == (61, WALL, 61)
    tallies.minute(WALL + 60)
    assert client.history.minutes.points()[-1].requests == 1
    tallies.second(1.0)
    assert client.rate < 1


async def test_no_file_is_no_history(tmp_path: Path) -> None:
    tallies = Tallies(120)
    load(tmp_path / "none", tallies)
    assert not tallies.clients


BROKEN: list[Any] = [
    "{",
    [],
    {"version": 2},
    {"version": 1, "clients": [], "nodes": {}},
    {"version": 1, "clients": {"a": {"first": "x"}}, "nodes": {}},
    {"version": 1, "clients": {"a" * 301: {}}, "nodes": {}},
]


@pytest.mark.parametrize("content", BROKEN)
async def test_a_file_that_is_none_is_put_aside(tmp_path: Path, content: object) -> None:
    path, tallies = tmp_path / "history.json", Tallies(120)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    load(path, tallies)
    assert not tallies.clients
    assert not path.exists()
    assert path.with_suffix(".unreadable").exists()


@pytest.mark.parametrize(
    "change", [{"requests": -1}, {"requests": 1e400}, {"minutes_history": "QQ=="}, {"pause": None}]
)
async def test_a_value_that_cannot_be_makes_it_unreadable_as_a_whole(
    tmp_path: Path, change: dict[str, object]
) -> None:
    await kept(tmp_path / "h")
    found = json.loads((tmp_path / "h").read_text())
    found["clients"]["10.0.0.1"] |= change
    (tmp_path / "h").write_text(json.dumps(found))
    tallies = Tallies(120)
    load(tmp_path / "h", tallies)
    assert not tallies.clients


async def test_a_disk_that_refuses_is_told_and_nothing_more(tmp_path: Path) -> None:
    await Memory(tmp_path / "missing" / "h", used()).save(WALL, NOW)
    assert not (tmp_path / "missing").exists()
