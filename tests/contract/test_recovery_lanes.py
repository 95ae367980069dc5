"""Whoever drives a card, the same kernels find the same entries: OpenCL on PoCL, CUDA on a pretended driver."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mainnet
from fake_cuda import FakeCuda
from gpupool.core.errors import DeadlineError
from gpupool.devices.recovery.cards import OpenCard
from gpupool.devices.recovery.cuda_driver import CudaDriver
from gpupool.devices.recovery.cuda_lane import CudaLane, CudaProgram, cards
from gpupool.devices.recovery.decompressor import CardDecompressor
from gpupool.devices.recovery.errors import DeviceFaultError, DeviceMemoryError
from gpupool.devices.recovery.opencl_lane import OpenClLane
from gpupool.devices.recovery.port import Argument, Array, Lane
from gpupool.devices.recovery.quads import LEAST_BITS, MOST_BITS, Quad, QuadJoiner, rooms
from gpupool.pos.chacha import plot_key
from gpupool.pos.pairs import new_workspace
from gpupool.pos.parameters import MOST_DROPPED_BITS
from gpupool.pos.tables import Entries, next_table
from gpupool.pos.truncation import truncate_twice

PROOF = mainnet.K32[0]
BUDGET = 256 << 20
Maker = Callable[[], Lane]


@pytest.fixture(scope="module")
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture(scope="module", params=["opencl", "cuda"])
def make_lane(request: pytest.FixtureRequest, cuda: FakeCuda) -> Maker:
    if request.param == "opencl":
        device = cl.get_platforms()[0].get_devices()[0]
        return lambda: OpenClLane(device)
    driver = CudaDriver(cuda.library)
    program = CudaProgram(driver, cards(driver)[0])
    return lambda: CudaLane(program)


@pytest.fixture
def lane(make_lane: Maker) -> Iterator[Lane]:
    lane = make_lane()
    yield lane
    lane.close()


@pytest.fixture
def joiner(lane: Lane) -> Iterator[QuadJoiner]:
    joiner = QuadJoiner(lane, lambda: BUDGET)
    yield joiner
    joiner.close()


def quads_of(xs: tuple[int, ...], bits: int) -> list[Quad]:
    upper = [x >> bits for x in xs]
    return [(upper[i], upper[i + 1], upper[i + 2], upper[i + 3]) for i in range(0, len(xs), 4)]


def rows(entries: Entries) -> set[tuple[int, ...]]:
    return {
        (y, *xs, *metadata)
        for y, xs, metadata in zip(
            entries.y.tolist(), entries.xs.tolist(), entries.metadata.tolist(), strict=True
        )
    }


def on_the_cpu(plot_id: bytes, bits: int, quad: Quad) -> Entries:
    workspace, key = new_workspace(bits), plot_key(plot_id)
    first = workspace.table_two(key, quad[0], quad[1])
    return next_table(3, first, workspace.table_two(key, quad[2], quad[3]))


def test_a_buffer_gives_back_what_was_written(lane: Lane) -> None:
    values, back = np.arange(1000, dtype=np.uint32), np.zeros(1000, np.uint32)
    buffer = lane.buffer(values.nbytes)
    lane.write(buffer, values)
    lane.fill(buffer, 7, 400)
    lane.read(buffer, back)
    lane.release(buffer)
    assert back[:100].tolist() == [7] * 100
    assert (back[100:] == values[100:]).all()


def test_more_memory_than_there_is_cannot_be_had(lane: Lane) -> None:
    with pytest.raises(DeviceMemoryError):
        lane.buffer(1 << 46)


def test_a_whole_proof_comes_back(joiner: QuadJoiner) -> None:
    lists = joiner.join(PROOF.plot_id, 16, quads_of(PROOF.xs, 16))
    assert [len(entries.y) > 0 for entries in lists] == [True] * 16
    for table in range(4, 8):
        lists = [next_table(table, lists[i], lists[i + 1]) for i in range(0, len(lists), 2)]
    assert [tuple(row) for row in lists[0].xs.tolist()] == [PROOF.xs]


def test_a_device_finds_exactly_what_the_cpu_finds(joiner: QuadJoiner) -> None:
    bits = 16
    quads = [*quads_of(mainnet.K32[1].xs[:8], bits), (5, 9, 70, 11), (3, 3, 4, 4)]
    found = joiner.join(PROOF.plot_id, bits, quads)
    for quad, entries in zip(quads, found, strict=True):
        assert rows(entries) == rows(on_the_cpu(PROOF.plot_id, bits, quad))


def test_a_bucket_joined_with_itself_gives_each_match_once(joiner: QuadJoiner) -> None:
    """Made for this test: the first two x share their upper 12 bits."""
    xs = (122238166, 121917546, 1091067724, 1092194832)
    (quad,) = quads_of(xs, 20)
    assert quad[0] == quad[1]
    (found,) = joiner.join(bytes(32), 20, [quad])
    assert [tuple(row) for row in found.xs.tolist()].count(xs) == 1
    assert rows(found) == rows(on_the_cpu(bytes(32), 20, quad))


def test_too_little_room_is_noticed_and_made(joiner: QuadJoiner, monkeypatch: pytest.MonkeyPatch) -> None:
    quads = quads_of(PROOF.xs[:8], 17)
    whole = [rows(entries) for entries in joiner.join(PROOF.plot_id, 17, quads)]
    joiner.close()
    monkeypatch.setattr("gpupool.devices.recovery.quads.rooms", lambda bits: (2, 1))
    assert [rows(entries) for entries in joiner.join(PROOF.plot_id, 17, quads)] == whole
    assert rooms(17)[0] > 2


def test_a_small_budget_works_in_small_batches(lane: Lane) -> None:
    asked: list[None] = []
    joiner = QuadJoiner(lane, lambda: 2 << 20)
    lists = joiner.join(PROOF.plot_id, 16, quads_of(PROOF.xs, 16), lambda: asked.append(None))
    joiner.close()
    assert len(asked) == 16
    assert all(len(entries.y) for entries in lists)


def test_a_budget_below_one_quad_is_told(lane: Lane) -> None:
    with pytest.raises(DeviceMemoryError, match="takes 97 MiB of a device; 50 MiB"):
        QuadJoiner(lane, lambda: 50 << 20).join(PROOF.plot_id, 22, [(1, 2, 3, 4)])


def test_work_stops_between_batches(lane: Lane) -> None:
    calls = itertools.count(1)

    def checkpoint() -> None:
        if next(calls) == 3:
            raise DeadlineError

    joiner = QuadJoiner(lane, lambda: 2 << 20)
    with pytest.raises(DeadlineError):
        joiner.join(PROOF.plot_id, 16, quads_of(PROOF.xs, 16), checkpoint)
    assert next(calls) == 4
    joiner.close()


def test_a_lane_may_be_used_in_another_thread_than_it_was_made_in(joiner: QuadJoiner) -> None:
    found: list[list[Entries]] = []
    thread = threading.Thread(
        target=lambda: found.append(joiner.join(PROOF.plot_id, 16, quads_of(PROOF.xs[:4], 16)))
    )
    thread.start()
    thread.join()
    assert PROOF.xs[:4] in {tuple(row) for row in found[0][0].xs.tolist()}


def test_all_memory_is_given_back(cuda: FakeCuda) -> None:
    driver = CudaDriver(cuda.library)
    program = CudaProgram(driver, cards(driver)[0])
    before = len(cuda.blocks), cuda.streams
    lane = CudaLane(program)
    joiner = QuadJoiner(lane, lambda: BUDGET)
    joiner.join(PROOF.plot_id, 16, quads_of(PROOF.xs[:4], 16))
    assert len(cuda.blocks) > before[0]
    joiner.close()
    lane.close()
    assert (len(cuda.blocks), cuda.streams) == before


def test_a_card_that_fails_is_told_by_the_drivers_own_name() -> None:
    cuda = FakeCuda()
    driver = CudaDriver(cuda.library)
    lane = CudaLane(CudaProgram(driver, cards(driver)[0]))
    cuda.broken = True
    with pytest.raises(DeviceFaultError, match="cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED"):
        QuadJoiner(lane, lambda: BUDGET).join(PROOF.plot_id, 16, quads_of(PROOF.xs[:4], 16))


def test_a_full_card_is_told() -> None:
    cuda = FakeCuda(memory=1 << 20)
    driver = CudaDriver(cuda.library)
    lane = CudaLane(CudaProgram(driver, cards(driver)[0]))
    with pytest.raises(DeviceMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        QuadJoiner(lane, lambda: BUDGET).join(PROOF.plot_id, 16, quads_of(PROOF.xs[:4], 16))


def test_what_others_hold_is_not_free_and_a_card_that_was_full_is_used_again() -> None:
    cuda = FakeCuda(memory=4 << 30)
    driver = CudaDriver(cuda.library)
    program = CudaProgram(driver, cards(driver)[0])
    lane = CudaLane(program)
    assert lane.free_bytes() == 4 << 30
    cuda.elsewhere = (4 << 30) - (1 << 20)
    assert lane.free_bytes() == 1 << 20
    joiner, quads = QuadJoiner(lane, lambda: BUDGET), quads_of(PROOF.xs[:4], 16)
    with pytest.raises(DeviceMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        joiner.join(PROOF.plot_id, 16, quads)
    assert not cuda.blocks, "nothing of what could be had is kept"
    cuda.elsewhere = 0
    assert joiner.join(PROOF.plot_id, 16, quads)[0].xs.tolist()
    assert lane.free_bytes() < 4 << 30


def test_a_lane_takes_no_more_than_its_part_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(memory=4 << 30)
    driver = CudaDriver(cuda.library)
    monkeypatch.setattr("gpupool.devices.recovery.cards.load_driver", lambda: driver)
    card = OpenCard("CUDA:0")
    first, second = CardDecompressor(card), CardDecompressor(card)
    cuda.elsewhere = (4 << 30) - (30 << 20)
    quality = truncate_twice(PROOF.xs[:8], 18)
    for decompressor in (first, second):
        decompressor.recover_quality(PROOF.plot_id, 18, quality, PROOF.challenge)
        assert cuda.held() <= 20 << 20
    assert cuda.held() > 10 << 20, "both hold their memory"
    with pytest.raises(DeviceMemoryError, match=r"Recovering 22 bits takes 97 MiB of a device; \d MiB"):
        first.recover_quality(PROOF.plot_id, 22, truncate_twice(PROOF.xs[:8], 22), PROOF.challenge)
    second.close()
    first.close()
    assert not cuda.held()


def test_opencl_tells_what_is_free_where_the_maker_does() -> None:
    device = cl.get_platforms()[0].get_devices()[0]
    lane = OpenClLane(device)
    assert lane.free_bytes() == lane.memory_bytes
    for told, expected in (([3 << 20, 1 << 20], 3 << 30), (3 << 20, 3 << 30), ([], lane.memory_bytes)):
        lane._device = SimpleNamespace(get_info=lambda _, told=told: told)
        assert lane.free_bytes() == expected


class Ledger:
    """A lane that works on nothing and keeps account of its buffers."""

    def __init__(self, largest_buffer: int = 1 << 40) -> None:
        self.memory_bytes, self.largest_buffer = 1 << 40, largest_buffer
        self.held: dict[int, int] = {}
        self.most = 0
        self._numbers = itertools.count()

    def free_bytes(self) -> int:
        return self.memory_bytes - sum(self.held.values())

    def buffer(self, size: int) -> int:
        assert 0 < size <= self.largest_buffer
        number = next(self._numbers)
        self.held[number] = size
        self.most = max(self.most, sum(self.held.values()))
        return number

    def release(self, buffer: int) -> None:
        del self.held[buffer]

    def write(self, buffer: int, values: Array) -> None:
        assert values.nbytes <= self.held[buffer]

    def fill(self, buffer: int, word: int, size: int) -> None:
        assert size <= self.held[buffer]

    def launch(self, kernel: str, items: int, arguments: Sequence[Argument]) -> None:
        assert items > 0

    def read(self, buffer: int, values: Array) -> None:
        """Nothing was found."""

    def close(self) -> None: ...


@given(
    bits=st.integers(LEAST_BITS, MOST_BITS),
    quads=st.integers(1, 16),
    budget=st.integers(1 << 16, 4 << 30),
    largest=st.integers(1 << 20, 1 << 30),
)
def test_no_work_takes_more_than_its_budget(bits: int, quads: int, budget: int, largest: int) -> None:
    lane = Ledger(largest)
    joiner = QuadJoiner(lane, lambda: budget)
    with suppress(DeviceMemoryError):
        assert len(joiner.join(bytes(32), bits, [(1, 2, 3, 4)] * quads)) == quads
    assert lane.most <= budget
    joiner.close()
    assert not lane.held


def test_a_card_of_4_gb_holds_every_level_in_both_lanes() -> None:
    """With a desktop on it, and buffers of at most a quarter of its memory, as old drivers have it."""
    for bits in range(LEAST_BITS, MOST_DROPPED_BITS + 1):
        lane = Ledger(1 << 30)
        QuadJoiner(lane, lambda: (3 << 30) // 3).join(bytes(32), bits, [(1, 2, 3, 4)] * 16)
        assert 2 * lane.most < 2 << 30


def test_a_card_is_described(cuda: FakeCuda) -> None:
    (card,) = cards(CudaDriver(cuda.library))
    assert (card.name, card.pci_address, card.capability) == ("Pretended Card", "0000:0b:00.0", (8, 6))
    assert card.memory_bytes == 8 << 30
