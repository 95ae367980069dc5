"""What every store keeps of those who may ask control, and of what they asked for."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleet_samples import NOON, an_api_token, later
from gpupool.core.errors import ConflictError
from gpupool.fleet.api_tokens import Role
from gpupool.fleet.events import Event
from gpupool.fleet.hotkeys import OperatorHotkey
from gpupool.fleet.ports.store import Store
from store_factories import FACTORIES


@pytest_asyncio.fixture(params=FACTORIES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = await FACTORIES[request.param](tmp_path).open()
    yield opened
    await opened.close()


async def test_api_tokens_are_found_by_digest_and_revoked(store: Store) -> None:
    later_one = an_api_token("two", created_at=later(9), expires_at=later(90), created_by="me")
    first = an_api_token("one", role=Role.ADMIN)
    async with store.write() as writer:
        assert await writer.api_tokens() == []
        for token in (later_one, first):
            await writer.put_api_token(token)
    async with store.read() as view:
        assert list(await view.api_tokens()) == [first, later_one]
        assert await view.api_token(later_one.digest) == later_one
        assert await view.api_token("another") is None
    with pytest.raises(ConflictError):
        async with store.write() as writer:
            await writer.put_api_token(replace(first, id=later_one.id + "x"))
    async with store.write() as writer:
        await writer.put_api_token(replace(first, revoked=True))
        assert await writer.api_token(first.digest) == replace(first, revoked=True)


async def test_hotkeys_are_found_by_address_changed_and_forgotten(store: Store) -> None:
    first = OperatorHotkey(address="5A", name="alice", role=Role.OPERATOR, created_by="me", created_at=NOON)
    second = replace(first, address="5B", name="bob", role=Role.VIEWER, created_at=later(1))
    async with store.write() as writer:
        for key in (second, first):
            await writer.put_hotkey(key)
    async with store.read() as view:
        assert list(await view.hotkeys()) == [first, second]
        assert (await view.hotkey("5B"), await view.hotkey("5C")) == (second, None)
    with pytest.raises(ConflictError, match="bob"):
        async with store.write() as writer:
            await writer.put_hotkey(replace(first, name="bob"))
    async with store.write() as writer:
        await writer.put_hotkey(replace(first, role=Role.ADMIN))
        assert [await writer.drop_hotkey("5B") for _ in range(2)] == [True, False]
    async with store.read() as view:
        assert list(await view.hotkeys()) == [replace(first, role=Role.ADMIN)]


async def test_events_are_found_by_whoever_asked_for_them(store: Store) -> None:
    asked = ["alice@10.0.0.1", None, "alice@10.0.0.2", "alice2@10.0.0.1", "al%@10.0.0.1", None, "operator"]
    async with store.write() as writer:
        for by in asked:
            data = {} if by is None else {"by": by}
            await writer.emit(Event(kind="node.locked", subject="node-1", at=NOON, data=data))

    async def found(**how: Any) -> list[object]:
        async with store.read() as view:
            return [event.data["by"] for event in await view.events(**how)]

    assert await found(asked=True) == [by for by in asked if by]
    assert await found(asked=True, latest=True, limit=2) == ["al%@10.0.0.1", "operator"]
    assert await found(actor="alice") == ["alice@10.0.0.1", "alice@10.0.0.2"]
    assert await found(actor="alice@10.0.0.2") == ["alice@10.0.0.2"]
    assert await found(actor="al%") == ["al%@10.0.0.1"]
    assert await found(actor="operator", subject="node-1") == ["operator"]
    assert await found(actor="operator", subject="node-2") == []


@pytest.mark.parametrize("kind", FACTORIES)
async def test_of_several_controls_one_takes_a_signature(kind: str, tmp_path: Path) -> None:
    factory = FACTORIES[kind](tmp_path)
    stores = [await factory.open() for _ in range(2)]

    async def taken(opened: Store) -> bool:
        async with opened.write() as writer:
            return await writer.first_time("hotkey 5A", "point")

    assert sorted(await asyncio.gather(*(taken(opened) for opened in stores * 5))) == [False] * 9 + [True]
    for opened in stores:
        await opened.close()
