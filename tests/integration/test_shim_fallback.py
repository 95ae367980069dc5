"""The harvester's library where the pool does not answer: the bundled one, settings, the log, forks."""

import ctypes
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import mainnet
from gpupool.harvester.building import compile_library
from official_decompressor import bundled_library
from shim_hostile import silent
from shim_stage import (
    FAILED,
    INVALID,
    NO_PROOF,
    NUMBERS,
    OK,
    WRONG_VERSION,
    Shim,
    answers,
    reply,
    sidecar,
)
from small_disk import SmallDisk

KNOWN = mainnet.K32[0]
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shim") / "shim.so"
    compile_library(path)
    return path


@pytest.fixture(scope="module")
def bundled() -> ctypes.CDLL:
    """The library as chiapos loads it: the shim finds it among what the process has loaded."""
    return ctypes.CDLL(str(bundled_library()))


def refuses(taken: socket.socket, _body: bytes) -> None:
    taken.sendall(reply(b"{}", 503))


@pytest.mark.usefixtures("bundled")
def test_the_bundled_library_answers_what_the_pool_refuses(library: Path, tmp_path: Path) -> None:
    with sidecar(refuses) as running:
        shim = Shim(library, sidecar=running.address, fallback="away", log=str(tmp_path / "shim.log"))
        result, found = shim.proof(KNOWN)
        assert (result, sorted(found)) == (OK, sorted(KNOWN.xs))
        result, pair = shim.quality(KNOWN)
        assert result == OK
        assert set(pair) <= set(KNOWN.xs[:4])
        running.behave = answers
        assert shim.proof(KNOWN) == (OK, NUMBERS)
    assert "qualities=0 proofs=0 fallbacks=2 " in running.heads[-1]
    assert "why=refused " in running.heads[-1]
    assert [line.endswith(" answered by the bundled library") for line in shim.lines()] == [True, True]


@pytest.mark.usefixtures("bundled")
def test_a_sidecar_that_is_away_is_not_waited_for_again(library: Path, tmp_path: Path) -> None:
    with sidecar(silent) as running:
        log = str(tmp_path / "shim.log")
        shim = Shim(library, sidecar=running.address, fallback="away", log=log, timeout_ms="6000")
        assert [shim.quality(KNOWN)[0] for _ in range(5)] == [OK] * 5
        assert len(running.heads) == 1
    words = [line.split(" ")[4] for line in shim.lines()]
    assert words == ["silent", *["unreachable"] * 4]


@pytest.mark.usefixtures("bundled")
def test_threads_take_turns_with_the_bundled_library(library: Path) -> None:
    shim, seen = Shim(library, sidecar="unix:/nowhere/at/all", fallback="away", timeout_ms="19000"), []
    proofs = mainnet.K32[:4]

    def harvest(number: int) -> None:
        result, found = shim.proof(proofs[number])
        seen.append((result, sorted(found) == sorted(proofs[number].xs)))

    threads = [threading.Thread(target=harvest, args=(number,)) for number in range(len(proofs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(OK, True)] * len(proofs)


@pytest.mark.usefixtures("bundled")
def test_nobody_waits_for_the_bundled_library_past_the_deadline(library: Path, tmp_path: Path) -> None:
    log = str(tmp_path / "shim.log")
    shim = Shim(library, sidecar="unix:/nowhere", fallback="always", timeout_ms="100", log=log)
    results: list[int] = []
    # A proof at C3 takes it half a second.
    threads = [threading.Thread(target=lambda: results.append(shim.proof(KNOWN, 3)[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [FAILED, FAILED, OK]
    # Both fail at one instant, and nobody waits for another's line.
    assert {" bundled " in line for line in shim.lines()} == {True}


@pytest.mark.usefixtures("bundled")
def test_levels_do_not_disturb_each_other_in_the_bundled_library(library: Path) -> None:
    """One context that has served C3 would fail the last of these."""
    shim = Shim(library, fallback="always")
    for level, proofs in ((3, mainnet.K32[3:4]), (1, mainnet.K32[:4])):
        for known in proofs:
            assert sorted(shim.proof(known, level)[1]) == sorted(known.xs)


@pytest.mark.usefixtures("bundled")
def test_always_sends_nothing(library: Path) -> None:
    with sidecar(answers) as running:
        shim = Shim(library, sidecar=running.address, fallback="always")
        assert sorted(shim.proof(KNOWN)[1]) == sorted(KNOWN.xs)
    assert running.connections == 0


@pytest.mark.usefixtures("bundled")
def test_what_the_pool_knows_to_have_no_proof_is_not_asked_again(library: Path) -> None:
    with sidecar(lambda taken, _: taken.sendall(reply(b'{"code":"no_proof"}', 404))) as running:
        shim = Shim(library, sidecar=running.address, fallback="away")
        assert shim.proof(KNOWN)[0] == NO_PROOF


def test_levels_that_the_pool_does_not_do_are_not_sent(library: Path, tmp_path: Path) -> None:
    with sidecar(answers) as running:
        shim = Shim(library, sidecar=running.address, log=str(tmp_path / "shim.log"))
        assert [shim.proof(KNOWN, level)[0] for level in (8, 9, 77)] == [FAILED] * 3
    assert running.connections == 0
    assert [" unsupported " in line for line in shim.lines()] == [True] * 3


# -- settings ------------------------------------------------------------------------------------------------

ELSEWHERE = (
    "", "10.0.0.1:80", "example.com:80", "0.0.0.0:80", "128.0.0.1:80", "[::2]:80", "::1:80", ":80", "localhost",
    "localhost:", "localhost:0", "localhost:65536", "localhost:+80", "localhost:80x", "unix:", "unix:relative",
    f"unix:/{'x' * 107}", f"{'1' * 200}:80",
)  # fmt: skip


@pytest.mark.usefixtures("bundled")
def test_without_settings_the_bundled_library_answers(library: Path) -> None:
    shim = Shim(library)
    assert sorted(shim.proof(KNOWN)[1]) == sorted(KNOWN.xs)


@pytest.mark.parametrize("address", ELSEWHERE, ids=lambda address: address[:20])
def test_no_sidecar_of_this_machine_means_the_bundled_library_and_a_line(
    library: Path, tmp_path: Path, address: str
) -> None:
    shim = Shim(library, sidecar=address, fallback="away", log=str(tmp_path / "shim.log"))
    (line,) = shim.lines()
    assert "GPUPOOL_HARVESTER_SIDECAR is " in line
    assert line.endswith(": the bundled library does everything")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("timeout_ms", "99"),
        ("timeout_ms", "19001"),
        ("timeout_ms", "-1"),
        ("timeout_ms", "1e3"),
        ("fallback", "on"),
    ],
)
def test_other_settings_that_make_no_sense_are_told(
    library: Path, tmp_path: Path, setting: str, value: str
) -> None:
    with sidecar(answers) as running:
        given = {"sidecar": running.address, "log": str(tmp_path / "shim.log"), setting: value}
        shim = Shim(library, **given)
        assert shim.proof(KNOWN) == (OK, NUMBERS)
    (line,) = shim.lines()
    assert f"GPUPOOL_HARVESTER_{setting.upper()} is n" in line


def test_addresses_of_this_machine_are_taken(library: Path) -> None:
    with sidecar(answers) as running:
        port = running.address.rpartition(":")[2]
        for host in ("localhost", "127.0.0.1"):
            assert Shim(library, sidecar=f"{host}:{port}").proof(KNOWN) == (OK, NUMBERS)


# -- the functions that compute nothing ----------------------------------------------------------------------


class Info(ctypes.Structure):
    _fields_ = [
        ("entry_bits", ctypes.c_uint32),
        ("stub_bits", ctypes.c_uint32),
        ("park_bytes", ctypes.c_size_t),
        ("ans_r", ctypes.c_double),
    ]


def test_formats_are_the_ones_of_the_bundled_library(library: Path, bundled: ctypes.CDLL) -> None:
    shim = Shim(library).library

    def told(by: ctypes.CDLL, k: int, level: int, size: int) -> tuple[int, bytes]:
        info = Info()
        return by.grGetCompressionInfo(ctypes.byref(info), ctypes.c_size_t(size), k, level), bytes(info)

    whole = ctypes.sizeof(Info)
    for k in (25, 31, 32, 33):
        for level in range(13):
            assert told(shim, k, level, whole) == told(bundled, k, level, whole), (k, level)
    assert told(shim, 32, 1, whole - 8) == told(bundled, 32, 1, whole - 8) == (WRONG_VERSION, bytes(whole))
    assert shim.grGetCompressionInfo(None, ctypes.c_size_t(whole), 32, 1) == INVALID


def test_contexts_cost_nothing_and_nonsense_is_refused(library: Path) -> None:
    shim = Shim(library)
    assert shim.created == OK
    first = shim.context.value
    assert [shim.create() for _ in range(1000)] == [OK] * 1000
    assert shim.context.value == first
    assert [shim.create(size=8), shim.create(version=2)] == [WRONG_VERSION, WRONG_VERSION]
    functions, null = shim.library, ctypes.c_void_p()
    assert functions.grHasGpuDecompressor(shim.context) == 0
    asked = [functions.grPreallocateForCompressionLevel(shim.context, 32, level) for level in (1, 7, 9, 10)]
    assert asked == [OK, OK, OK, INVALID]
    assert functions.grCreateContext(null, null, ctypes.c_size_t(88)) == INVALID
    assert functions.grFetchProofForChallenge(shim.context, null) == INVALID
    assert functions.grGetFetchQualitiesXPair(shim.context, null) == INVALID
    functions.grDestroyContext(shim.context)
    functions.grDestroyContext(null)


# -- the log -------------------------------------------------------------------------------------------------


def test_the_log_is_private_and_takes_ten_lines_in_ten_seconds(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "shim.log"
    shim = Shim(library, sidecar="unix:/nowhere", log=str(log))
    assert [shim.proof(KNOWN, 9)[0] for _ in range(100)] == [FAILED] * 100
    assert 10 <= len(shim.lines()) < 100  # more than one window where the machine is slow
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_full_log_is_put_aside(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "shim.log"
    log.write_bytes(b"x" * (1 << 20))
    shim = Shim(library, sidecar="unix:/nowhere", log=str(log))
    assert [shim.proof(KNOWN, 9)[0] for _ in range(2)] == [FAILED] * 2
    assert len(shim.lines()) == 2
    assert log.with_name("shim.log.1").stat().st_size == 1 << 20


def test_a_full_disk_costs_lines_and_nothing_else(library: Path, tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", "64k") as disk, sidecar(refuses) as running:
        disk.fill()
        shim = Shim(library, sidecar=running.address, log=str(disk.seen / "shim.log"))
        assert [shim.proof(KNOWN)[0] for _ in range(3)] == [FAILED] * 3
        running.behave = answers
        assert shim.proof(KNOWN) == (OK, NUMBERS)
        assert "proofs=3 " in running.heads[-1]
        disk.free()
        running.behave = refuses
        assert shim.proof(KNOWN)[0] == FAILED
        (line,) = shim.lines()
        assert line.endswith(" (3 more before)")


@pytest.mark.parametrize("kind", ["a link", "a pipe", "a folder", "nowhere", "a device"])
def test_a_log_that_cannot_be_written_keeps_nobody(library: Path, tmp_path: Path, kind: str) -> None:
    log = Path("/dev/full") if kind == "a device" else tmp_path / "there" / "shim.log"
    if kind not in {"nowhere", "a device"}:
        log.parent.mkdir()
    if kind == "a link":
        log.symlink_to(tmp_path / "precious")
    elif kind == "a pipe":
        os.mkfifo(log)
    elif kind == "a folder":
        log.mkdir()
    with sidecar(answers) as running:
        shim = Shim(library, sidecar=running.address, log=str(log))
        assert [shim.proof(KNOWN, 9)[0], shim.proof(KNOWN)[0]] == [FAILED, OK]
    assert not (tmp_path / "precious").exists()


# -- processes -----------------------------------------------------------------------------------------------

FORKS = """
import os, sys
from pathlib import Path
import ctypes, mainnet
from official_decompressor import bundled_library
from shim_hostile import silent
from shim_stage import OK, NUMBERS, Shim
library, address, away = sys.argv[1:]
kept = ctypes.CDLL(str(bundled_library()))
known = mainnet.K32[0]
shim = Shim(Path(library), sidecar=address)
fallen = Shim(Path(library), sidecar=away, fallback="away")
def asked():
    return shim.proof(known) == (OK, NUMBERS) and sorted(fallen.proof(known)[1]) == sorted(known.xs)
assert asked()
child = os.fork()
if child == 0:
    os._exit(0 if asked() else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert asked()
"""
ALONE = """
import sys
from pathlib import Path
import mainnet
from shim_hostile import silent
from shim_stage import FAILED, Shim
shim = Shim(Path(sys.argv[1]), sidecar="unix:/nowhere", fallback="away", log=sys.argv[2])
assert [shim.proof(mainnet.K32[0])[0] for _ in range(2)] == [FAILED] * 2
"""


def run(code: str, *arguments: str) -> None:
    paths = os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT / "tests")])
    line = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        line, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_child_has_connections_and_a_bundled_library_of_its_own(library: Path) -> None:
    with sidecar(answers) as running:
        run(FORKS, str(library), running.address, "unix:/nowhere")
    assert running.connections == 2
    pids = [next(w for w in head.split() if w.startswith("pid=")) for head in running.heads]
    assert pids[0] == pids[2] != pids[1]


def test_where_the_bundled_library_is_not_loaded_that_is_told(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "shim.log"
    run(ALONE, str(library), str(log))
    lines = log.read_text().splitlines()
    assert lines[0].endswith(" the bundled library is not loaded")
    assert [" bundled " in line for line in lines[1:]] == [True, True]
