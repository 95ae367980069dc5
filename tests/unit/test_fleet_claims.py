"""The claims rule: one exclusive claim or shared ones within the memory, and the cpu device only shares."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_samples import a_device, a_placement, exclusive, shared
from gpupool.fleet.claims import Claim, ClaimMode, refusal
from gpupool.fleet.devices import Device, DeviceKind

MEMORY = 100
GPU = a_device("node-1", memory_mib=MEMORY)
CPU = a_device("node-1", memory_mib=MEMORY, kind=DeviceKind.CPU)


@dataclass(frozen=True)
class Ask:
    """One step of a random history: somebody asks, or an earlier holder lets go."""

    release: bool
    mode: ClaimMode
    mib: int
    holder: int


asks = st.builds(
    Ask,
    release=st.booleans(),
    mode=st.sampled_from(ClaimMode),
    mib=st.integers(0, MEMORY + 20),
    holder=st.integers(0, 5),
)


@given(st.sampled_from([GPU, CPU]), st.lists(asks, max_size=40))
def test_no_history_of_asking_and_releasing_breaks_the_rule(device: Device, history: list[Ask]) -> None:
    held: dict[int, Claim] = {}
    for ask in history:
        if ask.release:
            held.pop(ask.holder, None)
            continue
        if ask.holder in held:
            continue
        if refusal(device, held.values(), ask.mode, ask.mib) is None:
            held[ask.holder] = Claim(
                placement_id=f"pl-{ask.holder}", device_id=device.id, mode=ask.mode, mib=ask.mib
            )
        exclusives = [claim for claim in held.values() if claim.mode is ClaimMode.EXCLUSIVE]
        assert len(exclusives) <= 1
        assert not exclusives or len(held) == 1
        assert device.kind is DeviceKind.GPU or not exclusives
        assert exclusives or sum(claim.mib for claim in held.values()) <= MEMORY


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(0, MEMORY))
def test_what_fits_is_never_refused(shares: list[int], asked: int) -> None:
    held: list[Claim] = []
    for number, mib in enumerate(shares):
        if sum(claim.mib for claim in held) + mib <= MEMORY:
            held.append(shared(a_placement("wl-1", "node-1", id=f"pl-{number}"), GPU, mib))
    fits = sum(claim.mib for claim in held) + asked <= MEMORY
    assert (refusal(GPU, held, ClaimMode.SHARED, asked) is None) == fits
    assert (refusal(GPU, held, ClaimMode.EXCLUSIVE, MEMORY) is None) == (not held)


@pytest.mark.parametrize(
    ("device", "held", "mode", "mib", "reason"),
    [
        (CPU, [], ClaimMode.EXCLUSIVE, 1, "a cpu device takes shared claims only"),
        (CPU, [], ClaimMode.SHARED, MEMORY, None),
        (GPU, [], ClaimMode.SHARED, MEMORY + 1, "100 MiB free, 101 MiB asked"),
        (GPU, ["shared"], ClaimMode.EXCLUSIVE, 1, "held by pl-1"),
        (GPU, ["exclusive"], ClaimMode.EXCLUSIVE, 1, "held by pl-1"),
        (GPU, ["exclusive"], ClaimMode.SHARED, 1, "held exclusively by pl-1"),
        (GPU, ["shared"], ClaimMode.SHARED, 60, None),
        (GPU, ["shared"], ClaimMode.SHARED, 61, "60 MiB free, 61 MiB asked"),
    ],
)
def test_a_refusal_says_why(
    device: Device, held: list[str], mode: ClaimMode, mib: int, reason: str | None
) -> None:
    placement = a_placement("wl-1", "node-1", id="pl-1")
    claims = {"shared": shared(placement, device, 40), "exclusive": exclusive(placement, device)}
    assert refusal(device, [claims[name] for name in held], mode, mib) == reason
