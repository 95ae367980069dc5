"""The market's books: what was kept is there after a restart, what was not was never seen, spoiled files are refused."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpupool.core.errors import StorageError
from gpupool.market.jobs import ask
from gpupool.market.keeping import Books
from gpupool.market.launching import issue
from gpupool.market.publishing import set_target
from gpupool.market.state import Market
from market_books import TRAINING, Bench, bench
from polling import eventually

MINER = "5miner"


def everything(market: Market) -> dict[str, dict[str, object]]:
    names = ("images", "chutes", "gpus", "launches", "instances", "jobs", "uses")
    return {name: dict(getattr(market, name)) for name in names}


async def lived(stand: Bench) -> None:
    """Leave a record of every kind."""
    chute = await stand.publish(target=3, jobs=TRAINING)
    first, _ = await stand.gpus(MINER, 1, 2)
    await stand.running(MINER, chute, [first])
    await issue(stand.market, MINER, chute.id)
    await ask(stand.market, chute.id, "train", {"n": 1})


async def test_everything_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "market.db"
    async with bench(path) as stand:
        await lived(stand)
        before = everything(stand.market)
    assert path.stat().st_mode & 0o777 == 0o600
    async with bench(path, stand.clock) as again:
        assert everything(again.market) == before


async def half_a_change(market: Market) -> None:
    """Begin to drop every chute, and fail."""
    async with market.change() as change:
        for chute in market.chutes.values():
            change.drop(chute)
        change.tell("chute_deleted")
        raise ZeroDivisionError


async def test_a_change_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path / "market.db") as stand:
        await lived(stand)
        before, told = everything(stand.market), len(stand.news)
        with pytest.raises(ZeroDivisionError):
            await half_a_change(stand.market)
        assert (everything(stand.market), len(stand.news)) == (before, told)


async def test_what_the_disk_does_not_take_was_never_seen(tmp_path: Path) -> None:
    path = tmp_path / "market.db"
    async with bench(path) as stand:
        chute = await stand.publish()
        with closing(sqlite3.connect(path)) as other:
            other.execute("DROP TABLE records")
            with pytest.raises(StorageError, match="cannot be used"):
                await stand.publish(code="chute = 2")
        assert stand.market.chutes[chute.id] == chute
        assert "chute_updated" not in stand.reasons


async def test_a_change_whose_asker_left_is_kept_and_seen_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, gate, begun = tmp_path / "market.db", threading.Event(), threading.Event()
    write = Books._write

    def slowly(books: Books, *arguments: Any) -> None:
        begun.set()
        gate.wait(30)
        write(books, *arguments)

    async with bench(path) as stand:
        chute = await stand.publish()
        monkeypatch.setattr(Books, "_write", slowly)
        asked = asyncio.create_task(set_target(stand.market, chute.id, 7))
        await eventually(begun.is_set, what="a change on its way to the disk")
        asked.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert stand.market.chutes[chute.id].target == 7
        seen = everything(stand.market)
    async with bench(path) as again:
        assert everything(again.market) == seen


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("PRAGMA user_version=99", "of version 99, this gpupool knows 1"),
        ("UPDATE records SET body = '{}' WHERE kind = 'chute'", "The chute .* cannot be read"),
        ("UPDATE records SET kind = 'ghost' WHERE kind = 'chute'", "The ghost .* cannot be read"),
    ],
    ids=["newer", "spoiled", "unknown"],
)
async def test_books_that_cannot_be_read_are_refused_and_left_alone(
    tmp_path: Path, spoil: str, why: str
) -> None:
    path = tmp_path / "market.db"
    async with bench(path) as stand:
        await lived(stand)
    with closing(sqlite3.connect(path)) as other:
        other.execute(spoil)
        other.commit()
    before = path.read_bytes()
    with pytest.raises(StorageError, match=why):
        async with bench(path):
            pass
    assert path.read_bytes() == before


async def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "market.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StorageError, match="cannot be used"):
        async with bench(path):
            pass
