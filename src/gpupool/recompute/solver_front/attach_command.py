"""``gpupool solver attach`` as a process: one look, or one after the other until told to stop."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from gpupool.core.errors import ConflictError, GpupoolError, UnavailableError
from gpupool.core.listening import stop_signal
from gpupool.recompute.addresses import Address
from gpupool.recompute.solver_front.attaching import Attachment, Standing, State, keep_attached
from gpupool.recompute.solver_front.farmer_rpc import (
    FarmerRefusedError,
    FarmerRpc,
    farmer_node_id,
    rpc_context,
)


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """What the command was told."""

    farmer: Address
    solver: Address
    chia_root: Path
    every: float
    once: bool
    as_json: bool


_FAULTS: dict[State, type[GpupoolError]] = {
    "elsewhere": ConflictError,
    "refused": FarmerRefusedError,
    "unreachable": UnavailableError,
}


def run_attach(options: AttachOptions, say: Callable[[str], None]) -> None:
    """Attach until stopped, or once; raises errors of `core.errors` where that one time does not succeed."""
    context = rpc_context(options.chia_root)
    farmer = farmer_node_id(options.chia_root)
    if farmer is not None and not options.as_json:
        say(
            f"This farmer's node id: {farmer} (the solver front needs it in --allow, unless it runs on this machine)"
        )

    def tell(standing: Standing) -> None:
        if options.as_json:
            say(json.dumps({**asdict(standing), "farmer_node_id": farmer}))
        else:
            say(standing.told + (f" {standing.remedy}" if standing.remedy else ""))

    async def work() -> Standing | None:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            attachment = Attachment(FarmerRpc(options.farmer, context, session), options.solver)
            if options.once:
                return await attachment.look()
            await keep_attached(attachment, tell, stop_signal(), options.every)
            return None

    standing = None
    with suppress(asyncio.CancelledError):
        standing = asyncio.run(work())
    if standing is not None:
        fault = _FAULTS.get(standing.state)
        if fault is not None:
            raise fault(standing.told, remedy=standing.remedy)
        tell(standing)
