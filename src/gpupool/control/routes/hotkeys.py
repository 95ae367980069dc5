"""Hotkeys that may ask control: let in, listed and shut out."""

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.contracts.hotkeys import HotkeyRequest, HotkeyView
from gpupool.control.hotkeys import HOTKEYS_PATH, add_hotkey, hotkey_view, remove_hotkey
from gpupool.control.routes.paging import By, Cursor, Limit, PoolHere, answer, page

router = APIRouter(prefix=HOTKEYS_PATH, tags=["access"])


@router.post("", status_code=201, response_model=HotkeyView)
async def let_hotkey_in(pool: PoolHere, by: By, request: HotkeyRequest) -> Response:
    """Let a hotkey ask control through the miner API, as far as a role allows."""
    async with pool.change(by) as change:
        hotkey = await add_hotkey(change, request)
    return answer(hotkey_view(hotkey), 201)


@router.get("", response_model=list[HotkeyView])
async def list_hotkeys(pool: PoolHere, cursor: Cursor = None, limit: Limit = 1000) -> Response:
    """List the hotkeys that may ask control, oldest first."""
    async with pool.store.read() as reader:
        hotkeys = await reader.hotkeys()
    return page([hotkey_view(hotkey) for hotkey in hotkeys], cursor, limit, lambda hotkey: hotkey.address)


@router.delete("/{hotkey}", status_code=204, response_class=Response)
async def shut_hotkey_out(pool: PoolHere, by: By, hotkey: str) -> Response:
    """Let a hotkey, named by its name or address, ask nothing any more."""
    async with pool.change(by) as change:
        await remove_hotkey(change, hotkey)
    return Response(status_code=204)
