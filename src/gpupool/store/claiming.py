"""Taking a claim: the rule of `fleet.claims.refusal`, said once more in SQL.

The rule and the insert are one statement, so no reader of an old view can slip between them. It inserts nothing
where the device refuses; the reason is then worked out in the same transaction by the domain's own function.
A database that runs writers side by side must run them serialisable; SQLite lets in one at a time.
"""

from typing import Final

from sqlalchemy import Insert, Integer, String, bindparam, exists, func, insert, literal, or_, select

from gpupool.fleet.claims import ClaimMode
from gpupool.fleet.devices import DeviceKind
from gpupool.store.tables import CLAIMS, DEVICES, PLACEMENTS

COLUMNS: Final = ("placement_id", "device_id", "mode", "mib", "priority")


def _conditional_insert(mode: ClaimMode) -> Insert:
    others = CLAIMS.alias("others")
    of_device = others.c.device_id == DEVICES.c.id
    if mode is ClaimMode.EXCLUSIVE:
        device_takes_it = (DEVICES.c.kind == DeviceKind.GPU.value) & ~exists().where(of_device)
    else:
        held = select(func.coalesce(func.sum(others.c.mib), 0)).where(of_device).scalar_subquery()
        blocked = exists().where(
            of_device,
            or_(others.c.mode == ClaimMode.EXCLUSIVE.value, others.c.placement_id == PLACEMENTS.c.id),
        )
        device_takes_it = ~blocked & (held + bindparam("mib", type_=Integer) <= DEVICES.c.memory_mib)
    source = (
        select(
            PLACEMENTS.c.id,
            DEVICES.c.id,
            literal(mode.value, String),
            bindparam("mib", type_=Integer),
            bindparam("priority", type_=Integer),
        )
        .select_from(PLACEMENTS.join(DEVICES, DEVICES.c.node_id == PLACEMENTS.c.node_id))
        .where(
            PLACEMENTS.c.id == bindparam("placement_id", type_=String),
            PLACEMENTS.c.live,
            DEVICES.c.id == bindparam("device_id", type_=String),
            device_takes_it,
        )
    )
    return insert(CLAIMS).from_select(COLUMNS, source)


TAKE: Final = {mode: _conditional_insert(mode) for mode in ClaimMode}
"""Inserts one claim or nothing; parameters: placement_id, device_id, mib, priority."""
