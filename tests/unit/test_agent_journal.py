"""The journal: what is in it after a crash is what was acknowledged."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_process import start_order
from gpupool.agent.journal import Journal
from gpupool.contracts.agent_link import StartOrder


def start(name: str) -> StartOrder:
    return StartOrder.model_validate(start_order(name, env={"KEY": "value"}))


async def test_it_comes_back_as_it_was_left(tmp_path: Path) -> None:
    journal = Journal.load(tmp_path / "journal.json")
    await journal.adopt_identity("node-1")
    await journal.start(1, start("pl-a"))
    await journal.start(2, start("pl-b"))
    await journal.stop(3, "pl-a", 4.5)
    again = Journal.load(tmp_path / "journal.json")
    assert (again.node_id, again.last_seq) == ("node-1", 3)
    assert again.wanted == journal.wanted
    assert again.wanted["pl-a"].stop_grace == 4.5
    assert (tmp_path / "journal.json").stat().st_mode & 0o777 == 0o600


async def test_a_repeated_start_does_not_take_back_a_stop(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    await journal.start(1, start("pl-a"))
    await journal.stop(2, "pl-a", 1.0)
    await journal.start(3, start("pl-a"))
    assert journal.wanted["pl-a"].stop_grace == 1.0


async def test_changes_at_once_all_reach_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    await asyncio.gather(*(journal.start(number, start(f"pl-{number}")) for number in range(1, 21)))
    await asyncio.gather(journal.drop({"pl-1"}), journal.start(21, start("pl-21")), journal.drop({"pl-2"}))
    again = Journal.load(tmp_path / "journal.json")
    assert again.last_seq == 21
    assert set(again.wanted) == {f"pl-{number}" for number in range(3, 22)}


@given(st.binary(max_size=200))
def test_what_is_no_journal_is_an_empty_one(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("agent") / "journal.json"
    path.write_bytes(content)
    journal = Journal.load(path)
    assert (journal.node_id, journal.last_seq, journal.wanted) == (None, 0, {})
