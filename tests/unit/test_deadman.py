"""The dead-man's switch by a clock that the test turns: told once, ended once, through restarts and deaf targets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpupool.agent.deadman import DeadMan
from gpupool.core.clock import FakeClock
from gpupool.notify.courier import Courier
from gpupool.notify.port import NotDeliveredError, Note

LIMIT = 300.0


class Phone:
    """Takes messages, or not."""

    name = "phone"

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.broken = False

    async def send(self, note: Note) -> None:
        if self.broken:
            raise NotDeliveredError("phone: no network")
        self.notes.append(note)

    @property
    def told(self) -> list[str]:
        return [str(note.facts["events"][0]["status"]) for note in self.notes]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def phone() -> Phone:
    return Phone()


@asynccontextmanager
async def dead_man(folder: Path, clock: FakeClock, phone: Phone) -> AsyncIterator[DeadMan]:
    courier = Courier("phone", phone, lambda done: None, pauses=())
    running = asyncio.create_task(courier.run())
    yield DeadMan(
        "http://control:32000", "gpu-1", LIMIT, [courier], folder / "deadman.json", clock=clock.monotonic
    )
    running.cancel()


async def pass_time(watch: DeadMan, clock: FakeClock, seconds: float, *, heard: bool = False) -> None:
    for _ in range(int(seconds / 5)):
        clock.advance(5)
        if heard:
            watch.heard()
        else:
            watch.lost("Control cannot be reached: connection refused.")
        await watch.look()


async def test_a_death_is_told_once_and_so_is_the_return(
    tmp_path: Path, clock: FakeClock, phone: Phone
) -> None:
    async with dead_man(tmp_path, clock, phone) as watch:
        for _ in range(2):
            await pass_time(watch, clock, 600, heard=True)
            await pass_time(watch, clock, LIMIT - 5)
        assert phone.notes == []
        await pass_time(watch, clock, 3600)
        assert phone.told == ["firing"]
        assert "gpu-1 has not reached control at http://control:32000" in phone.notes[0].text
        assert "connection refused" in phone.notes[0].text
        assert phone.notes[0].tone == "failure"
        await pass_time(watch, clock, 3600, heard=True)
        assert phone.told == ["firing", "over"]
        assert phone.notes[1].tone == "success"
        assert not (tmp_path / "deadman.json").exists()
        await pass_time(watch, clock, 3600)
        assert phone.told == ["firing", "over", "firing"]


async def test_a_control_that_was_never_reached_is_told_too(
    tmp_path: Path, clock: FakeClock, phone: Phone
) -> None:
    async with dead_man(tmp_path, clock, phone) as watch:
        await pass_time(watch, clock, LIMIT + 10)
        assert phone.told == ["firing"]


async def test_a_restart_of_the_agent_tells_nothing_twice_and_loses_no_end(
    tmp_path: Path, clock: FakeClock, phone: Phone
) -> None:
    async with dead_man(tmp_path, clock, phone) as watch:
        await pass_time(watch, clock, LIMIT + 10)
    async with dead_man(tmp_path, clock, phone) as watch:
        await pass_time(watch, clock, 3600)
        assert phone.told == ["firing"]
        await pass_time(watch, clock, 10, heard=True)
        assert phone.told == ["firing", "over"]


@pytest.mark.parametrize(
    "kept", ["", "[1]", '{"control_lost_since": 3}', '{"control_lost_since": "2026-01-01"}']
)
async def test_a_file_that_says_nothing_is_passed_over(
    tmp_path: Path, clock: FakeClock, phone: Phone, kept: str
) -> None:
    (tmp_path / "deadman.json").write_text(kept)
    async with dead_man(tmp_path, clock, phone) as watch:
        await pass_time(watch, clock, 60, heard=True)
        assert phone.notes == []


async def test_a_death_that_nobody_took_is_tried_again_and_a_return_ends_that(
    tmp_path: Path, clock: FakeClock, phone: Phone
) -> None:
    async with dead_man(tmp_path, clock, phone) as watch:
        phone.broken = True
        await pass_time(watch, clock, LIMIT + 100)
        phone.broken = False
        await pass_time(watch, clock, 200)
        assert phone.told == ["firing"]
        phone.broken = True
        await pass_time(watch, clock, 30, heard=True)
        phone.broken = False
        await pass_time(watch, clock, 200, heard=True)
        assert phone.told == ["firing", "over"]


async def test_an_agent_that_was_stopped_has_not_asked_either(
    tmp_path: Path, clock: FakeClock, phone: Phone
) -> None:
    async with dead_man(tmp_path, clock, phone) as watch:
        await pass_time(watch, clock, 60, heard=True)
        clock.advance(86_400)
        await watch.look()
        assert phone.notes == []


async def test_a_disk_that_takes_nothing_stops_no_message(
    tmp_path: Path, clock: FakeClock, phone: Phone
) -> None:
    gone = tmp_path / "gone"
    async with dead_man(gone, clock, phone) as watch:
        await pass_time(watch, clock, 3600)
        await pass_time(watch, clock, 60, heard=True)
        assert phone.told == ["firing", "over"]
