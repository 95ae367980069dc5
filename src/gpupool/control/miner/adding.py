"""`add-node`: says of a machine that has joined what it costs and has, and tells how it gets ready, line by line.

There the API reaches into a cluster to find the machine; here the machine's agent dials in. So a machine that is not in
the pool is answered with the line to paste on it, and asked for again afterwards.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

from gpupool.contracts.join_command import is_loopback, join_command
from gpupool.contracts.miner_api import Progress, ServerArgs
from gpupool.contracts.nodes import InviteRequest, NodeSettings
from gpupool.control import tending
from gpupool.control.hotkeys import sr25519
from gpupool.control.inviting import invite
from gpupool.control.pool import Change, Pool
from gpupool.core.errors import GpupoolError, InvalidInputError, NotFoundError
from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.nodes import Node, NodeState

PATIENCE_SECONDS: Final = 840.0
"""How long progress is told: the client hangs up after 900 s."""
_QUIET_SECONDS: Final = 15.0
"""After so long without news the last line is said again, so that nothing on the way takes the stream for dead."""
_MOST_HOURLY: Final = 10_000.0


async def begin(pool: Pool, by: str | None, args: ServerArgs, control_url: str) -> tuple[str, bool]:
    """Take what is said of a machine; return its node's id, and whether all of it could be taken yet.

    Raises InvalidInputError where it does not fit the machine, NotFoundError with the join command where the machine
    has not joined.
    """
    sr25519().public_of(args.validator)
    if args.gpu_short_ref not in pool.catalog:
        raise InvalidInputError(
            f"The GPU catalog has no model {args.gpu_short_ref}.",
            remedy="See `gpupool gpu catalog` for the models and their short refs.",
        )
    node = (await pool.snapshot()).find_node(args.name)
    if node is None or node.removed:
        raise await _not_joined(pool, by, args, control_url)
    return node.id, await _adopted(pool, by, node.id, args)


async def progress(
    pool: Pool, by: str | None, node_id: str, args: ServerArgs, *, adopted: bool
) -> AsyncIterator[bytes]:
    """Yield lines of what goes on with the node until it is ready, or will not be."""
    loop = asyncio.get_running_loop()
    deadline, told, quiet_since = loop.time() + PATIENCE_SECONDS, "", loop.time()
    while not pool.changes.closed:
        seen = pool.changes.count
        try:
            adopted = adopted or await _adopted(pool, by, node_id, args)
            node = (await pool.snapshot()).nodes.get(node_id)
        except GpupoolError as error:
            yield _line(pool, f"ERROR: {error.message} {error.remedy}")
            return
        done, news = _news(node, args, adopted=adopted)
        if news != told or loop.time() - quiet_since >= _QUIET_SECONDS:
            yield _line(pool, news)
            told, quiet_since = news, loop.time()
        if done:
            return
        if loop.time() >= deadline:
            yield _line(pool, "Not ready yet; ask again, or follow it with `gpupool node list`.")
            return
        await pool.changes.after(seen, _QUIET_SECONDS)


def _news(node: Node | None, args: ServerArgs, *, adopted: bool) -> tuple[bool, str]:
    """Return whether this is the end, and what to say."""
    if node is None or node.removed:
        return True, f"ERROR: {args.name} was removed from the pool meanwhile."
    if node.state is NodeState.READY and adopted:
        return True, f"{node.name} is ready: {args.gpu_short_ref} at ${args.hourly_cost:.2f} an hour and GPU."
    if node.state is NodeState.UNREACHABLE:
        return (
            False,
            f"{node.name} is unreachable since {node.seen_at:%Y-%m-%d %H:%M:%S} UTC: start its agent.",
        )
    if not adopted:
        return False, f"{node.name} has joined from {node.address}; waiting for its inventory."
    return False, f"{node.name} is {node.state.value}."


async def _adopted(pool: Pool, by: str | None, node_id: str, args: ServerArgs) -> bool:
    """Note cost and model of a node; False where its GPUs are not known yet. InvalidInputError where they differ."""
    async with pool.change(by) as change:
        node = await tending.find_member(change, node_id)
        devices = await change.writer.devices(node.id)
        if node.state is NodeState.JOINING and not devices:
            return False
        await _adopt(change, node, [d for d in devices if d.present and d.kind is DeviceKind.GPU], args)
    return True


async def _adopt(change: Change, node: Node, gpus: Sequence[Device], args: ServerArgs) -> None:
    models = Counter(gpu.short_ref or gpu.name for gpu in gpus)
    if set(models) != {args.gpu_short_ref}:
        has = ", ".join(f"{count} x {model}" for model, count in models.items()) or "no GPU"
        raise InvalidInputError(
            f"The node {node.name} has {has}, not {args.gpu_short_ref}.",
            remedy="Give the short ref that `gpupool gpu pool` shows; where that is wrong, see `gpupool doctor` there.",
        )
    whole = args.hourly_cost * len(gpus)
    if whole > _MOST_HOURLY:
        raise InvalidInputError(
            f"{len(gpus)} GPUs at ${args.hourly_cost:g} are more than ${_MOST_HOURLY:g} an hour."
        )
    await tending.describe(change, node, NodeSettings(hourly_usd=whole))
    await change.emit(
        "node.added",
        node.id,
        node=node.name,
        validator=args.validator,
        short_ref=args.gpu_short_ref,
        hourly_usd=whole,
    )


async def _not_joined(pool: Pool, by: str | None, args: ServerArgs, control_url: str) -> NotFoundError:
    """Mint a token for the machine and return the error that says how it joins."""
    request = InviteRequest(name=args.name, short_ref=args.gpu_short_ref)
    async with pool.change(by) as change:
        token, secret = await invite(change, request, pool.catalog)
    # The client prints the answer as it came, where a quote would carry a backslash that no shell wants.
    line = join_command(secret, args.name, control_url, None).replace('"', "")
    where = " with control's address as that machine reaches it" if is_loopback(control_url) else ""
    return NotFoundError(
        f"The machine {args.name} has not joined this pool. Run this there{where}: {line}",
        remedy=f"Then add the node again. The line is good for one machine until {token.expires_at:%Y-%m-%d %H:%M} UTC; "
        "one printed earlier for this name is void.",
    )


def _line(pool: Pool, message: str) -> bytes:
    shown = Progress(timestamp=f"{pool.clock.now():%Y-%m-%dT%H:%M:%S.%f}Z", message=message[:2000])
    return f"data: {shown.model_dump_json()}\n\n".encode()
