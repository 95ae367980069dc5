"""Hotkeys of people: which ones may ask control, and whether a request was really signed by one of them, once.

A signature covers neither method nor path, only time and body (chutes.md section 2.1 c). So each is taken once: what
was seen on its way can't be sent again, to whatever path. What was taken is kept in the store, where every control of
the pool looks and where a restart forgets nothing.
"""

from typing import TYPE_CHECKING, Final

from gpupool.contracts.hotkeys import HotkeyRequest, HotkeyView
from gpupool.control.pool import Change, Pool
from gpupool.core.errors import (
    ConflictError,
    EnvironmentProblemError,
    LimitReachedError,
    NotFoundError,
    UnauthorizedError,
)
from gpupool.fleet.hotkeys import OperatorHotkey

if TYPE_CHECKING:
    from types import ModuleType

MAX_HOTKEYS: Final = 1000
"""Hotkeys that may ask control at a time."""
HOTKEYS_PATH: Final = "/v1/hotkeys"
_POINT_BYTES: Final = 32
"""The first half of a signature: its random point, which no two signatures share and nobody else can choose anew."""


async def add_hotkey(change: Change, request: HotkeyRequest) -> OperatorHotkey:
    """Let a hotkey ask control; return what is kept of it.

    Raises InvalidInputError for an address with a wrong checksum, ConflictError where it or the name is known already.
    """
    sr25519().public_of(request.address)
    known = await change.writer.hotkeys()
    for other in known:
        if request.address == other.address or request.name == other.name:
            raise ConflictError(
                f"There is a hotkey {other.name} already: {other.address}, {other.role.value}.",
                remedy=f"To change it, `gpupool hotkey remove {other.name}` first.",
            )
    if len(known) >= MAX_HOTKEYS:
        raise LimitReachedError(f"{MAX_HOTKEYS} hotkeys may ask this control, and no more.")
    hotkey = OperatorHotkey(
        address=request.address,
        name=request.name,
        role=request.role,
        created_by=change.by,
        created_at=change.at,
    )
    await change.writer.put_hotkey(hotkey)
    await change.emit("hotkey.added", hotkey.address, name=hotkey.name, role=hotkey.role.value)
    return hotkey


async def remove_hotkey(change: Change, name: str) -> None:
    """Let a hotkey, by its name or address, ask nothing any more; raise NotFoundError where none is called so."""
    for hotkey in await change.writer.hotkeys():
        if name in {hotkey.name, hotkey.address}:
            await change.writer.drop_hotkey(hotkey.address)
            await change.emit("hotkey.removed", hotkey.address, name=hotkey.name, role=hotkey.role.value)
            return
    raise NotFoundError(f"There is no hotkey {name[:100]!r} to remove.", remedy="See `gpupool hotkey list`.")


async def known_hotkey(pool: Pool, address: str) -> OperatorHotkey:
    """Return the hotkey of an address; raise UnauthorizedError where it may not ask control."""
    async with pool.store.read() as reader:
        found = await reader.hotkey(address)
    if found is None:
        raise UnauthorizedError(
            f"The hotkey {address[:60]} may not ask this control.",
            remedy=f"An admin of the pool lets it: `gpupool hotkey add NAME {address[:60]} --role operator`.",
        )
    return found


async def check_signature(
    pool: Pool, hotkey: OperatorHotkey, message: bytes, signature: bytes, what: str
) -> None:
    """Raise UnauthorizedError unless the holder of this hotkey has signed the message, and for the first time.

    ``what``: says what must have been signed.
    """
    if not sr25519().verified(hotkey.address, message, signature):
        raise UnauthorizedError(
            f"The signature of {hotkey.name} does not fit the request.",
            remedy=f"The hotkey signs {what}, with sr25519, as chutes-miner-cli does.",
        )
    async with pool.store.write() as writer:
        fresh = await writer.first_time(f"hotkey {hotkey.address}", signature[:_POINT_BYTES].hex())
    if not fresh:
        raise UnauthorizedError(
            f"The request of {hotkey.name} was sent before (its signature is not new).",
            remedy="Sign each request anew. If you did, somebody else repeats what you send: use TLS or a tunnel.",
        )


def hotkey_view(hotkey: OperatorHotkey) -> HotkeyView:
    """Show a hotkey."""
    return HotkeyView(
        address=hotkey.address,
        name=hotkey.name,
        role=hotkey.role,
        created_by=hotkey.created_by,
        created_at=hotkey.created_at,
    )


def sr25519() -> "ModuleType":
    """Return the module that knows hotkeys; EnvironmentProblemError where the package for them is not installed."""
    try:
        from gpupool.validators import hotkeys
    except ModuleNotFoundError as error:
        raise EnvironmentProblemError(
            "This control cannot check signatures of hotkeys: py-sr25519-bindings is not installed.",
            remedy="Install it: pip install 'gpupool[validator]'.",
        ) from error
    return hotkeys
