"""Threads and cards that were asked for, what start-up prints of them, and what is refused."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpupool.cli.recompute_client_options import keep_kernels
from gpupool.core.errors import InvalidInputError
from gpupool.devices.recovery.cards import CPU_AS_CARD
from gpupool.devices.recovery.choosing import Card, Maker
from gpupool.recompute.server.banner import listening_line, request_line
from gpupool.recompute.server.capacity import ThreadCount, usable_cores
from gpupool.recompute.server.cards import (
    CardChoice,
    CardChoices,
    Found,
    ask_driver,
    find_cards,
    parse_indexes,
    use_cards,
)
from gpupool.recompute.server.main import staff
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.variables import ChiaposVariables

RTX = Card("CUDA", 0, "NVIDIA GeForce RTX 3070", 8 << 30, "0000:01:00.0", 300)
VEGA = Card("OpenCL", 0, "Vega", 8 << 30, "0000:02:00.0", 200)
RTX_AGAIN = Card("OpenCL", 1, "NVIDIA GeForce RTX 3070", 8 << 30, "0000:01:00.0", 300)
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


def lines_of(
    found: Found, asked: CardChoices | None = None, *, threads: int = 16, cores: int = 18
) -> list[str]:
    """The lines before the server listens."""
    settings = RecomputeServerSettings(recompute_threads=threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpupool.recompute.server.settings.usable_cores", lambda: cores)
        patch.setattr("gpupool.recompute.server.main.processor_name", lambda: "EPYC")
        return staff(settings, asked or choices(), found)[1]


def test_the_lines_of_the_guide_on_a_machine_without_cards() -> None:
    assert [*lines_of(Found()), listening_line("0.0.0.0", 11989)] == [
        "[chiapos] Using 16 / 18 CPU threads",
        "[chiapos] Using 0 / 0 CUDA devices",
        "Using 16 / 18 CPU threads",
        "Using EPYC (CPU (numba))",
        "ReComputeServer listening on 0.0.0.0 port 11989",
    ]


def test_the_lines_of_the_guide_on_a_machine_with_a_card() -> None:
    assert lines_of(Found((RTX,)))[:4] == [
        "[chiapos] Using 16 / 18 CPU threads",
        "[chiapos] Using 1 / 1 CUDA devices",
        "Using 16 / 18 CPU threads",
        "Using NVIDIA GeForce RTX 3070 (CUDA (native))",
    ]


def test_each_card_is_a_worker_of_its_own_with_two_lanes_behind_that_of_the_cpu() -> None:
    plans, lines = staff(
        RecomputeServerSettings(recompute_threads=1), choices(), Found((RTX, VEGA, RTX_AGAIN))
    )
    assert [(plan.kind, plan.engine, plan.threads) for plan in plans] == [
        ("cpu", "numba", 1),
        ("gpu", "cuda", 2),
        ("gpu", "opencl", 2),
    ]
    assert [plan.factory.rpartition("checked_engine")[2] for plan in plans] == [":1", ":CUDA:0", ":OpenCL:0"]
    assert lines[1:3] == ["[chiapos] Using 1 / 1 CUDA devices", "[chiapos] Using 1 / 2 OpenCL devices"]
    assert "Using Vega (OpenCL)" in lines


def test_a_card_that_is_not_wanted_is_counted_and_not_used() -> None:
    lines = lines_of(Found((RTX,)), choices(cuda_limit=0))
    assert lines[1] == "[chiapos] Using 0 / 1 CUDA devices"
    assert not any("3070" in line for line in lines)


def test_eight_threads_a_card_are_suggested_where_there_are_several() -> None:
    two = Found((RTX, VEGA))
    assert lines_of(two, threads=10)[-1] == (
        "With 2 cards, -r 16 is suggested (8 threads a card); 10 are used"
    )
    for found, threads, cores in ((two, 16, 18), (two, 4, 4), (Found((RTX,)), 2, 18)):
        assert "suggested" not in lines_of(found, threads=threads, cores=cores)[-1]


def test_cards_that_cannot_be_looked_for_are_told_and_cost_nothing_else() -> None:
    found = Found((VEGA,), (("CUDA", "looking for them ended with signal 11"),))
    lines = lines_of(found, choices(cuda=("0",)))
    assert "No CUDA cards are used: looking for them ended with signal 11" in lines
    assert "Using Vega (OpenCL)" in lines


def test_a_card_that_cuda_cannot_drive_is_told_and_used_through_opencl_where_it_shows() -> None:
    old = replace(RTX, fault="It needs a compiler. Install it.")
    told = "NVIDIA GeForce RTX 3070 (CUDA 0) is used through OpenCL: It needs a compiler. Install it."
    lines = lines_of(Found((old, VEGA, RTX_AGAIN)))
    assert lines[1:3] == ["[chiapos] Using 0 / 1 CUDA devices", "[chiapos] Using 2 / 2 OpenCL devices"]
    assert told in lines
    assert told.replace("is used through OpenCL", "is not used") in lines_of(Found((old, VEGA)))
    assert not any("compiler" in line for line in lines_of(Found((old, VEGA)), choices(cuda=("0",))))
    assert not any("compiler" in line for line in lines_of(Found((old, VEGA)), choices(cuda_limit=0)))


def test_a_number_of_cards_that_finds_none_is_told() -> None:
    lines = lines_of(Found(), choices(cuda_limit=1, opencl_limit=0))
    assert lines[-1] == "No CUDA card was found, and -G 1 asks for some"


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
    with pytest.raises(InvalidInputError, match=r"no CUDA card 1, 2.*0 \(NVIDIA GeForce RTX 3070\)"):
        use_cards(choices(cuda=("1,2",)), Found((RTX, VEGA)))
    with pytest.raises(InvalidInputError, match=r"no OpenCL card 0.*none"):
        use_cards(choices(opencl=("0",)), Found((RTX,)))


def test_the_smallest_job_of_a_card_comes_from_its_variable() -> None:
    assert choices().least_log_entries == 21
    assert choices(variables=ChiaposVariables(min_gpu_log_entries=19)).least_log_entries == 19


def test_drivers_of_cards_that_are_not_wanted_stay_unloaded() -> None:
    asked: list[Maker] = []

    def look(maker: Maker) -> list[Card] | str:
        asked.append(maker)
        return [RTX] if maker == "CUDA" else "it crashed"

    found = find_cards(choices(), look)
    assert (found.cards, found.faults, sorted(asked)) == (
        (RTX,),
        (("OpenCL", "it crashed"),),
        ["CUDA", "OpenCL"],
    )
    asked.clear()
    find_cards(choices(cuda_limit=0), look)
    find_cards(choices(opencl_limit=0), look)
    find_cards(choices(0, 0), look)
    find_cards(choices(0, 0, cuda=("0",)), look)
    assert asked == ["OpenCL", "CUDA", "CUDA"]


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import os; os.abort()", "signal 6"),
        ("import sys; sys.exit(7)", "status 7"),
        ("import time; time.sleep(60)", "did not answer within 0.5 s"),
        ("print('a driver says hello')", "no list"),
        ("print('[{}]')", "no list"),
    ],
)
def test_whatever_a_driver_does_to_the_process_that_looks_is_a_sentence(program: str, word: str) -> None:
    answer = ask_driver("CUDA", ("-c", program), 0.5 if "sleep" in program else 60.0)
    assert isinstance(answer, str)
    assert word in answer


def test_the_process_that_looks_tells_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_AS_CARD, "1")
    found = ask_driver("OpenCL")
    assert [card.id for card in found if isinstance(card, Card)] == ["OpenCL:0"]
    assert ask_driver("CUDA") == []


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


def test_kernels_of_the_tools_are_kept_in_the_users_cache_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    with monkeypatch.context() as patch:
        patch.delenv("NUMBA_CACHE_DIR", raising=False)
        patch.setattr(Path, "home", homeless)
        keep_kernels()
        assert "NUMBA_CACHE_DIR" not in os.environ
        patch.setattr(Path, "home", lambda: tmp_path)
        keep_kernels()
        assert os.environ.pop("NUMBA_CACHE_DIR") == str(tmp_path / ".cache" / "gpupool" / "numba")
