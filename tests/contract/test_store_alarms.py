"""The store's contract for alarms and silences, held by every database."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from fleet_samples import a_silence, an_alarm, later
from gpupool.fleet.alarms import Severity
from gpupool.fleet.ports.store import Store
from store_factories import FACTORIES


@pytest_asyncio.fixture(params=FACTORIES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = await FACTORIES[request.param](tmp_path).open()
    yield opened
    await opened.close()


async def test_alarms_are_kept_replaced_and_forgotten(store: Store) -> None:
    lasting = an_alarm(told_at=later(1))
    over = an_alarm(rule="gpu_lost", severity=Severity.WARNING, until=later(2))
    async with store.write() as writer:
        for alarm in (lasting, over, replace(over, why="again")):
            await writer.put_alarm(alarm)
        assert list(await writer.alarms()) == [replace(over, why="again"), lasting]
        await writer.forget_alarm(over.key)
        await writer.forget_alarm(("gpu_lost", "never raised"))
    async with store.read() as view:
        assert list(await view.alarms()) == [lasting]


async def test_silences_are_kept_and_dropped(store: Store) -> None:
    first, second = sorted((a_silence(), a_silence(pattern="*")), key=lambda silence: silence.id)
    async with store.write() as writer:
        await writer.put_silence(second)
        await writer.put_silence(first)
    async with store.read() as view:
        assert list(await view.silences()) == [first, second]
    async with store.write() as writer:
        assert await writer.drop_silence(first.id)
        assert not await writer.drop_silence(first.id)
        assert list(await writer.silences()) == [second]
