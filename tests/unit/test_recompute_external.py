"""The operator's own server: its command, its lines, and a keeper that never leaves it dead."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.recompute.server import external
from gpupool.recompute.server.cards import CardChoice, CardChoices
from gpupool.recompute.server.external import ExternalServer, Keeper
from gpupool.recompute.server.external_lines import (
    DeviceLine,
    ListeningLine,
    RequestLine,
    Tally,
    TroubleLine,
    lines_of,
    read_line,
)
from gpupool.recompute.server.leash import NOT_STARTED
from gpupool.recompute.server.registering import NodeList
from polling import eventually

ANY = CardChoices(CardChoice("CUDA"), CardChoice("OpenCL"))
START = """
import sys, time
from pathlib import Path
say = lambda line: print(line, flush=True)
say("[chiapos] Using 16 / 18 CPU threads")
say("Using 16 / 18 CPU threads")
say("Using NVIDIA GeForce RTX 3070 (CUDA (native))")
say("ReComputeServer listening on 127.0.0.1 port 11989")
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[1714650000123] Request from 192.168.1.7 for K32 C7 took 11.689 ms (used_gpu = 0, is_fail = 0)",
            RequestLine("192.168.1.7", 32, 7, 11.689, failed=False, on_card=False),
        ),
        (
            "Request from ::1 for K34 C19 took 2100 ms (used_gpu = 1, is_fail = 1)",
            RequestLine("::1", 34, 19, 2100.0, failed=True, on_card=True),
        ),
        (
            "Using NVIDIA GeForce RTX 3070 (CUDA (native))",
            DeviceLine("NVIDIA GeForce RTX 3070", "CUDA (native)"),
        ),
        ("Using gfx1030 (OpenCL)", DeviceLine("gfx1030", "OpenCL")),
        ("ReComputeServer listening on 0.0.0.0 port 11989", ListeningLine("0.0.0.0", 11989)),
        (
            "Client 10.0.0.3 failed with: msg too large",
            TroubleLine("Client 10.0.0.3 failed with: msg too large"),
        ),
        ("Using 16 / 18 CPU threads", None),
        ("[chiapos] Using 1 / 1 OpenCL devices (AMD)", None),
        ("Using 1 / 1 OpenCL devices (AMD)", None),
        ("", None),
    ],
)
def test_its_lines_are_understood(text: str, line: object) -> None:
    assert read_line(text) == line


@given(st.text(max_size=300))
def test_any_line_can_be_read(text: str) -> None:
    Tally().note(read_line(text))


def test_our_own_request_line_reads_as_the_originals() -> None:
    from gpupool.recompute.server.banner import request_line

    text = request_line(7, "::1", (32, 3), 1.5, engine="numba", result="busy", request_id="req-1")
    assert read_line(text) == RequestLine("::1", 32, 3, 1.5, failed=True, on_card=False)


def test_requests_are_summed_up_level_by_level() -> None:
    tally = Tally()
    for level, ms, failed in ((7, 10.0, 0), (7, 20.0, 1), (9, 100.0, 0)):
        tally.note(
            read_line(f"Request from a for K32 C{level} took {ms} ms (used_gpu = 1, is_fail = {failed})")
        )
    tally.note(read_line("Node failed with: EOF"))
    summary = tally.summary()
    assert (summary["requests"], summary["failed"], summary["on_card"], summary["troubles"]) == (3, 1, 3, 1)
    assert summary["mean_ms"] == {"C7": 11.0, "C9": 100.0}


@given(st.lists(st.binary(max_size=30)))
async def test_lines_are_the_same_however_they_are_cut(chunks: list[bytes]) -> None:
    class Stream:
        def __init__(self) -> None:
            self.left = [chunk for chunk in chunks if chunk]

        async def read(self, n: int = -1) -> bytes:
            return self.left.pop(0) if self.left else b""

    whole = b"".join(chunks)
    *lines, rest = whole.split(b"\n")
    expected = [line.decode(errors="replace").rstrip("\r") for line in (*lines, *([rest] if rest else []))]
    assert [line async for line in lines_of(Stream())] == expected


def test_the_command_has_repeated_options_as_the_original_wants_them(tmp_path: Path) -> None:
    server = ExternalServer(program=tmp_path / "server", host="0.0.0.0", port=12000, threads=-1)
    choices = CardChoices(CardChoice("CUDA", 2, (0, 1)), CardChoice("OpenCL", 0))
    assert server.command(choices) == [
        *(str(tmp_path / "server"), "-p", "12000", "--host", "0.0.0.0", "-r", "-1"),
        *("-G", "2", "-g", "0", "-g", "1", "-O", "0"),
    ]
    assert ExternalServer(program=tmp_path / "server").command(ANY)[1:] == [
        "-p",
        "11989",
        "--host",
        "127.0.0.1",
    ]


def test_what_cannot_be_started_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("")
    for program in (tmp_path / "none", tmp_path, text):
        with pytest.raises(InvalidInputError, match="not a program"):
            ExternalServer(program=program).check()
    for port in (0, 70000):
        with pytest.raises(InvalidInputError, match="not a port"):
            ExternalServer(program=Path(sys.executable), port=port).check()
    ExternalServer(program=Path(sys.executable), memory_mb=10).check()


@asynccontextmanager
async def kept(program: str, *, memory_mb: int | None = None) -> AsyncIterator[Keeper]:
    """Keep a Python program running for as long as the block lasts."""
    server = ExternalServer(program=Path(sys.executable), memory_mb=memory_mb, stop_seconds=0.3)
    keeper, stop = Keeper(server, [sys.executable, "-c", START + program]), asyncio.Event()
    keeping = asyncio.create_task(keeper.keep(stop))
    try:
        yield keeper
    finally:
        stop.set()
        await keeping


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(external, "LOOK_SECONDS", 0.05)


async def test_it_is_heard_and_stopped() -> None:
    request = "Request from 10.0.0.9 for K32 C7 took 12.5 ms (used_gpu = 1, is_fail = 0)"
    async with kept(f'say("{request}"); time.sleep(600)') as keeper:
        await eventually(lambda: keeper.tally.requests == 1)
        assert keeper.tally.listening == ListeningLine("127.0.0.1", 11989)
        assert keeper.tally.devices == [DeviceLine("NVIDIA GeForce RTX 3070", "CUDA (native)")]
        assert keeper.starts == 1
    assert keeper.starts == 1


async def test_one_that_ends_is_started_again() -> None:
    async with kept("sys.exit(134)") as keeper:
        await eventually(lambda: keeper.starts >= 3)
    assert len(keeper.tally.devices) <= 1


async def test_one_that_grows_too_large_is_started_again() -> None:
    async with kept("big = bytearray(b'x') * (200 << 20); time.sleep(600)", memory_mb=100) as keeper:
        await eventually(lambda: keeper.starts >= 2)


async def test_one_that_does_not_want_to_end_is_made_to() -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); say('deaf failed with: x'); time.sleep(600)"
    async with kept(program) as keeper:
        await eventually(lambda: keeper.tally.troubles == 1)
    assert keeper.starts == 1


async def test_one_that_the_system_cannot_run_is_tried_again(tmp_path: Path) -> None:
    keeper, stop = Keeper(ExternalServer(program=tmp_path), [str(tmp_path / "none")]), asyncio.Event()
    assert await keeper._once(stop) == NOT_STARTED


def test_pauses_grow_and_a_long_run_resets_them() -> None:
    keeper = Keeper(ExternalServer(program=Path("x")), ["x"])
    keeper._pause = 1.0
    assert [keeper._next_pause(0.1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert keeper._next_pause(external.SETTLED_SECONDS) == external.FIRST_PAUSE


def test_a_server_stands_in_a_list_of_nodes_and_the_operators_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    first, second = NodeList(path, "0.0.0.0", 11989), NodeList(path, "::", 12000)
    first.add()
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o640)
    path.write_text("# my rigs\n10.0.0.7 weight=2\n" + path.read_text())
    second.add()
    second.add()
    lines = path.read_text().splitlines()
    assert [line.partition(" #")[0] for line in lines] == [
        *("# my rigs", "10.0.0.7 weight=2", "127.0.0.1:11989 kind=frames", "[::1]:12000 kind=frames")
    ]
    first.remove()
    second.remove()
    assert path.read_text() == "# my rigs\n10.0.0.7 weight=2\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_line_that_the_operator_wrote_is_enough_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("10.0.0.7 weight=2")
    nodes = NodeList(path, "10.0.0.7", 11989)
    nodes.add()
    nodes.remove()
    assert path.read_text() == "10.0.0.7 weight=2"


def test_a_list_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblemError, match="cannot be changed"):
        NodeList(tmp_path / "no folder" / "nodes", "::1", 1).add()
