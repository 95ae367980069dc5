"""Random histories of placing, claiming and ending against the real store, beside a model that is easy to check."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_samples import a_device, a_placement, later, new_database, put_ground
from gpupool.fleet.claims import Claim, ClaimMode, ClaimRefusedError
from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.ports.store import Store
from gpupool.store.sql_store import SqlStore
from gpupool.store.sqlite import SqliteDatabase

MEMORY = 100


@dataclass(frozen=True)
class Step:
    """A placement asks for a device, or ends."""

    placement: int
    device: int
    mode: ClaimMode
    mib: int
    ends: bool


steps = st.builds(
    Step,
    placement=st.integers(0, 3),
    device=st.integers(0, 2),
    mode=st.sampled_from(ClaimMode),
    mib=st.integers(0, MEMORY + 10),
    ends=st.sampled_from([False, False, False, True]),
)


@dataclass
class Model:
    """Who holds how much of which device: what the rule says in the plainest way."""

    devices: list[Device]
    held: dict[tuple[int, str], tuple[ClaimMode, int]] = field(default_factory=dict)

    def takes(self, step: Step, holder: str) -> bool:
        """Tell whether the device should take the claim, and remember it if so."""
        others = {key[1]: value for key, value in self.held.items() if key[0] == step.device}
        if holder in others:
            return False
        if step.mode is ClaimMode.EXCLUSIVE:
            able = not others and self.devices[step.device].kind is DeviceKind.GPU
        else:
            able = all(mode is ClaimMode.SHARED for mode, _ in others.values())
            able = able and sum(mib for _, mib in others.values()) + step.mib <= MEMORY
        if able:
            self.held[step.device, holder] = (step.mode, step.mib)
        return able

    def release(self, holder: str) -> None:
        """Forget all that a placement held."""
        self.held = {key: value for key, value in self.held.items() if key[1] != holder}


async def _end(store: Store, placement: Placement) -> None:
    async with store.write() as writer:
        stored = await writer.placement(placement.id)
        assert stored is not None
        draining = stored.moved(PlacementState.DRAINING, later(1))
        await writer.put_placement(draining)
        await writer.put_placement(draining.moved(PlacementState.ENDED, later(2)))


async def _claim(store: Store, step: Step, placement: Placement, device: Device) -> bool:
    claim = Claim(placement_id=placement.id, device_id=device.id, mode=step.mode, mib=step.mib)
    try:
        async with store.write() as writer:
            await writer.claim(claim)
    except ClaimRefusedError:
        return False
    return True


async def _replay(path: Path, history: list[Step]) -> None:
    store = SqlStore(SqliteDatabase(path))
    async with store.write() as writer:
        node, _, workload = await put_ground(writer)
        devices = [
            a_device(node.id, index=index, memory_mib=MEMORY, kind=kind)
            for index, kind in enumerate((DeviceKind.GPU, DeviceKind.GPU, DeviceKind.CPU))
        ]
        for device in devices:
            await writer.put_device(device)
    model = Model(devices)
    places: dict[int, Placement] = {}
    for step in history:
        if step.placement not in places:
            places[step.placement] = a_placement(workload.id, node.id)
            async with store.write() as writer:
                await writer.put_placement(places[step.placement])
        placement = places[step.placement]
        if step.ends:
            await _end(store, placement)
            model.release(placement.id)
            del places[step.placement]
        else:
            expected = model.takes(step, placement.id)
            assert await _claim(store, step, placement, devices[step.device]) == expected
    async with store.read() as view:
        claims = await view.claims()
    stored = {(claim.device_id, claim.placement_id): (claim.mode, claim.mib) for claim in claims}
    assert stored == {(devices[key[0]].id, key[1]): value for key, value in model.held.items()}
    await store.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_the_store_takes_and_refuses_claims_as_the_rule_says(history: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_replay(new_database(Path(folder)), history))
