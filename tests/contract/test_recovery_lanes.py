"""Whoever drives a card, the same kernels find the same entries: OpenCL on PoCL, CUDA on a pretended driver."""

import itertools
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pyopencl as cl
import pytest

import mainnet
from fake_cuda import FakeCuda
from gpupool.core.errors import DeadlineError
from gpupool.devices.recovery.cuda_driver import CudaDriver
from gpupool.devices.recovery.cuda_lane import CudaLane, CudaProgram, cards
from gpupool.devices.recovery.errors import DeviceFaultError, DeviceMemoryError
from gpupool.devices.recovery.opencl_lane import OpenClLane
from gpupool.devices.recovery.port import Lane
from gpupool.devices.recovery.quads import Quad, QuadJoiner, rooms
from gpupool.pos.chacha import plot_key
from gpupool.pos.pairs import new_workspace
from gpupool.pos.tables import Entries, next_table

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
    joiner = QuadJoiner(lane, BUDGET)
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
    joiner = QuadJoiner(lane, 2 * 12 << 16)
    lists = joiner.join(PROOF.plot_id, 16, quads_of(PROOF.xs, 16), lambda: asked.append(None))
    joiner.close()
    assert len(asked) == 16
    assert all(len(entries.y) for entries in lists)


def test_a_budget_below_one_quad_is_told(lane: Lane) -> None:
    with pytest.raises(DeviceMemoryError, match="takes 96 MiB of a device; 50 MiB"):
        QuadJoiner(lane, 50 << 20).join(PROOF.plot_id, 22, [(1, 2, 3, 4)])


def test_work_stops_between_batches(lane: Lane) -> None:
    calls = itertools.count(1)

    def checkpoint() -> None:
        if next(calls) == 3:
            raise DeadlineError

    joiner = QuadJoiner(lane, 2 * 12 << 16)
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
    joiner = QuadJoiner(lane, BUDGET)
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
        QuadJoiner(lane, BUDGET).join(PROOF.plot_id, 16, quads_of(PROOF.xs[:4], 16))


def test_a_full_card_is_told() -> None:
    cuda = FakeCuda(memory=1 << 20)
    driver = CudaDriver(cuda.library)
    lane = CudaLane(CudaProgram(driver, cards(driver)[0]))
    with pytest.raises(DeviceMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        QuadJoiner(lane, BUDGET).join(PROOF.plot_id, 16, quads_of(PROOF.xs[:4], 16))


def test_a_card_is_described(cuda: FakeCuda) -> None:
    (card,) = cards(CudaDriver(cuda.library))
    assert (card.name, card.pci_address, card.capability) == ("Pretended Card", "0000:0b:00.0", (8, 6))
    assert card.memory_bytes == 8 << 30
