"""Which cards are used: numbers, lists, the fastest one, and a card that two makers show once."""

import json
import subprocess
import sys

import pytest

from fake_cuda import FakeCuda
from gpupool.core.errors import NotFoundError
from gpupool.devices.recovery import nvrtc
from gpupool.devices.recovery.cards import CPU_AS_CARD, OpenCard, find_cards
from gpupool.devices.recovery.choosing import Card, Wish, choose
from gpupool.devices.recovery.cuda_driver import CudaDriver

SLOW = Card("CUDA", 0, "slow", 8 << 30, "0000:01:00.0", 100)
FAST = Card("CUDA", 1, "fast", 8 << 30, "0000:02:00.0", 300)
SLOW_AGAIN = Card("OpenCL", 0, "slow", 8 << 30, "0000:01:00.0", 100)
OTHER = Card("OpenCL", 1, "other", 8 << 30, "0000:03:00.0", 200)
NAMELESS = Card("OpenCL", 2, "without address", 8 << 30, None, 50)
UNDRIVEN = Card("CUDA", 2, "old", 8 << 30, "0000:04:00.0", 900, "It is too old.")
UNDRIVEN_AGAIN = Card("OpenCL", 3, "old", 8 << 30, "0000:04:00.0", 900)
ALL = [SLOW, FAST, SLOW_AGAIN, OTHER, NAMELESS]
EVERY, NONE = Wish(), Wish(limit=0)


@pytest.mark.parametrize(
    ("cuda", "opencl", "chosen"),
    [
        (EVERY, EVERY, [SLOW, FAST, OTHER, NAMELESS]),
        (Wish(limit=1), NONE, [FAST]),
        (Wish(limit=2), NONE, [SLOW, FAST]),
        (Wish(limit=9), Wish(limit=1), [SLOW, FAST, OTHER]),
        (NONE, EVERY, [SLOW_AGAIN, OTHER, NAMELESS]),
        (Wish(limit=1), EVERY, [FAST, SLOW_AGAIN, OTHER, NAMELESS]),
        (Wish(limit=0, indexes=(0,)), NONE, [SLOW]),
        (Wish(indexes=(1, 0)), Wish(limit=1, indexes=(2,)), [SLOW, FAST, NAMELESS]),
        (Wish(indexes=(0,)), Wish(indexes=(0,)), [SLOW]),
        (NONE, NONE, []),
    ],
)
def test_cards_are_chosen(cuda: Wish, opencl: Wish, chosen: list[Card]) -> None:
    assert choose(ALL, cuda, opencl) == chosen


@pytest.mark.parametrize(
    ("cuda", "opencl", "chosen"),
    [
        (EVERY, EVERY, [SLOW, FAST, OTHER, NAMELESS, UNDRIVEN_AGAIN]),
        (Wish(limit=1), Wish(limit=1), [FAST, UNDRIVEN_AGAIN]),
        (EVERY, NONE, [SLOW, FAST]),
        (Wish(indexes=(2,)), EVERY, [UNDRIVEN, SLOW_AGAIN, OTHER, NAMELESS]),
    ],
)
def test_a_card_that_cuda_cannot_drive_is_left_to_opencl(
    cuda: Wish, opencl: Wish, chosen: list[Card]
) -> None:
    assert choose([*ALL, UNDRIVEN, UNDRIVEN_AGAIN], cuda, opencl) == chosen


@pytest.mark.parametrize(
    ("capability", "version", "words"),
    [
        ((8, 6), 13000, None),
        ((6, 1), 12080, None),
        ((3, 7), 12080, "driver for CUDA 12.8. Update the driver"),
        ((8, 6), 11040, "driver for CUDA 11.4"),
        ((7, 0), 13000, "pip install no-such-package"),
    ],
)
def test_cuda_tells_which_cards_it_can_drive(
    capability: tuple[int, int], version: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words is not None and "package" in words:
        monkeypatch.setitem(nvrtc.PACKAGES, 12, "no-such-package")
    driver = CudaDriver(FakeCuda(capability=capability, version=version).library)
    (card,) = find_cards(driver, ("CUDA",))
    assert card.fault == words if words is None else words in str(card.fault)


def test_cards_are_listed_without_harm_by_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "gpupool.devices.recovery.cards"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={CPU_AS_CARD: "1"})
    (card,) = json.loads(done.stdout)
    assert (card["maker"], card["index"]) == ("OpenCL", 0)
    assert card["memory_bytes"] > 0
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    assert json.loads(done.stdout) == []


def test_a_card_of_cuda_is_found_and_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_AS_CARD, "1")
    driver = CudaDriver(FakeCuda().library)
    cuda, opencl = find_cards(driver)
    assert cuda == Card("CUDA", 0, "Pretended Card", 8 << 30, "0000:0b:00.0", 28 * 1777)
    assert [OpenCard(card.id, driver).lane().memory_bytes for card in (cuda, opencl)] == [
        card.memory_bytes for card in (cuda, opencl)
    ]
    assert OpenCard(cuda.id, driver).name == cuda.name


@pytest.mark.parametrize("card_id", ["CUDA:0", "CUDA:7", "OpenCL:0"])
def test_a_card_that_is_gone_is_told(card_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CPU_AS_CARD, raising=False)
    with pytest.raises(NotFoundError, match=card_id):
        OpenCard(card_id)
