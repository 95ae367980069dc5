"""Threads and cards that were asked for, what start-up prints of them, and what is refused."""

from collections.abc import Callable

import pytest

from gpupool.core.errors import InvalidInputError
from gpupool.devices.probe import DeviceFacts
from gpupool.recompute.server.banner import device_lines, listening_line, request_line
from gpupool.recompute.server.capacity import ThreadCount, usable_cores
from gpupool.recompute.server.cards import (
    CardChoice,
    CardChoices,
    Cards,
    check_cards,
    find_cards,
    parse_indexes,
)
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.variables import ChiaposVariables

NOBODY = ChiaposVariables()


def choices(
    cuda_limit: int | None = None,
    opencl_limit: int | None = None,
    cuda: tuple[str, ...] = (),
    opencl: tuple[str, ...] = (),
    variables: ChiaposVariables = NOBODY,
) -> CardChoices:
    return CardChoices.of(variables, cuda_limit, opencl_limit, cuda, opencl)


@pytest.mark.parametrize(
    ("asked", "cores", "shown", "used"),
    [(16, 18, 16, 16), (60, 64, 60, 60), (64, 2, 64, 2), (0, 8, 8, 8), (-3, 8, 8, 8), (1, 1, 1, 1)],
)
def test_threads_are_shown_as_asked_and_never_more_than_cores(
    asked: int, cores: int, shown: int, used: int
) -> None:
    count = ThreadCount(asked, cores)
    assert (count.shown, count.used) == (shown, used)


def test_sixteen_threads_unless_told_otherwise() -> None:
    threads = RecomputeServerSettings().threads
    assert (threads.asked, threads.shown, threads.cores) == (16, 16, usable_cores())
    assert 1 <= threads.used <= threads.cores


def test_the_lines_of_the_guide_on_a_machine_without_cards() -> None:
    lines = [
        *device_lines(ThreadCount(16, 18), 0, [("AMD EPYC 7502", "CPU (numba)")], None),
        listening_line("0.0.0.0", 11989),
    ]
    assert lines == [
        "[chiapos] Using 16 / 18 CPU threads",
        "[chiapos] Using 0 / 0 CUDA devices",
        "Using 16 / 18 CPU threads",
        "Using AMD EPYC 7502 (CPU (numba))",
        "ReComputeServer listening on 0.0.0.0 port 11989",
    ]


def test_the_lines_on_a_machine_with_a_card_say_that_it_is_not_used() -> None:
    cards = Cards(cuda=("NVIDIA GeForce RTX 3070",))
    lines = device_lines(
        ThreadCount(64, 2), 1, [("EPYC", "CPU (numba)")], check_cards(choices(cuda_limit=1), cards)
    )
    assert lines == [
        "[chiapos] Using 64 / 2 CPU threads",
        "[chiapos] Using 0 / 1 CUDA devices",
        "Using 64 / 2 CPU threads",
        "Using EPYC (CPU (numba))",
        "GPU engines are not in this version: the CPU computes (cards found: 1 CUDA; asked for: -G 1)",
    ]


@pytest.mark.parametrize(
    ("given", "indexes"),
    [(["0,1"], (0, 1)), (["0", "1"], (0, 1)), (["1,0", "1", "2"], (1, 0, 2)), ([], ()), ([" 0 , "], (0,))],
)
def test_lists_of_cards_are_written_both_ways(given: list[str], indexes: tuple[int, ...]) -> None:
    assert parse_indexes(given, "-g") == indexes


@pytest.mark.parametrize("given", ["a", "-1", "1.0", "0;1", "1234"])
def test_what_is_no_index_is_refused_and_the_flag_is_named(given: str) -> None:
    with pytest.raises(InvalidInputError, match="-c"):
        parse_indexes([given], "-c")


def test_flags_count_more_than_variables() -> None:
    variables = ChiaposVariables(max_gpu_devices=4, max_opencl_devices=0)
    found = choices(cuda_limit=1, variables=variables)
    assert (found.cuda.limit, found.opencl.limit) == (1, 0)
    assert choices(variables=variables).cuda == CardChoice("CUDA", 4)


def test_a_card_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidInputError, match=r"no CUDA card 2.*0 \(A\), 1 \(B\)"):
        check_cards(choices(cuda=("1,2",)), Cards(cuda=("A", "B")))
    with pytest.raises(InvalidInputError, match=r"no OpenCL card 0.*none"):
        check_cards(choices(opencl=("0",)), Cards())


@pytest.mark.parametrize(
    ("asked", "cards"),
    [
        (choices(cuda_limit=1), Cards()),
        (choices(opencl_limit=2), Cards()),
        (choices(), Cards(cuda=("A",))),
        (choices(cuda=("0",)), Cards(cuda=("A",))),
        (choices(cuda_limit=0), Cards(cuda=("A",))),
        (choices(opencl=("1", "0")), Cards(opencl=("A", "B"))),
    ],
)
def test_a_card_that_is_there_or_asked_for_is_never_left_out_in_silence(
    asked: CardChoices, cards: Cards
) -> None:
    assert "the CPU computes" in (check_cards(asked, cards) or "")


@pytest.mark.parametrize("asked", [choices(), choices(cuda_limit=0, opencl_limit=0)])
def test_without_cards_and_wishes_there_is_nothing_to_say(asked: CardChoices) -> None:
    assert check_cards(asked, Cards()) is None


def test_opencl_drivers_stay_unloaded_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def probe(name: str) -> Callable[[object], tuple[DeviceFacts, ...]]:
        def devices(_: object) -> tuple[DeviceFacts, ...]:
            asked.append(name)
            return ()

        return devices

    monkeypatch.setattr("gpupool.devices.nvml.NvmlProbe.devices", probe("nvml"))
    monkeypatch.setattr("gpupool.devices.opencl.OpenClProbe.devices", probe("opencl"))
    find_cards(choices())
    find_cards(choices(opencl_limit=0))
    assert asked == ["nvml", "nvml"]
    find_cards(choices(opencl_limit=1))
    assert asked[2:] == ["nvml", "opencl"]


def test_a_request_is_one_line_that_begins_as_the_originals() -> None:
    assert request_line(
        1764543600123, "192.168.1.7", (32, 3), 146.25, engine="numba", result="ok", request_id="req-1"
    ) == (
        "[1764543600123] Request from 192.168.1.7 for K32 C3 took 146.250 ms (used_gpu = 0, is_fail = 0,"
        " engine = numba, result = ok, id = req-1)"
    )
    refused = request_line(7, "::1", None, 0.5, engine="numba", result="invalid_input", request_id="req-2")
    assert "for K? C? took 0.500 ms (used_gpu = 0, is_fail = 1," in refused
    assert "result = invalid_input" in refused
