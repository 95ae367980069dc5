"""The harvester's library and its sidecar: what is asked, what is taken for an answer, and what never is."""

import json
import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest

import mainnet
from gpupool.contracts.recompute import ProofRequest, QualityRequest, hexadecimal
from gpupool.harvester.building import compile_library
from gpupool.pos.truncation import truncate, truncate_twice
from shim_hostile import HOSTILE
from shim_stage import (
    FAILED,
    NO_PROOF,
    NUMBERS,
    OK,
    PATIENCE,
    Behaviour,
    Shim,
    answers,
    reply,
    right,
    sidecar,
)

KNOWN = mainnet.K32[0]
SHORT = "400"
"""Milliseconds for what is to run into its deadline."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shim") / "shim.so"
    compile_library(path, "-Werror", "-Wconversion", "-Wshadow")
    return path


def test_it_asks_what_the_contract_says_and_gives_back_the_numbers(library: Path) -> None:
    with sidecar(answers) as running:
        shim = Shim(library, sidecar=running.address)
        assert shim.proof(KNOWN, 3) == (OK, NUMBERS)
        assert shim.quality(KNOWN, 3) == (OK, (7, 9))
        assert shim.quality(KNOWN, 6) == (OK, (7, 9))
    proof = ProofRequest.model_validate_json(running.bodies[0])
    assert (proof.plot_id, proof.k, proof.level, proof.challenge) == (KNOWN.plot_id.hex(), 32, 3, None)
    assert proof.line_points == hexadecimal(truncate(KNOWN.xs, 18))
    for body, level, count in zip(running.bodies[1:], (3, 6), (1, 2), strict=True):
        quality = QualityRequest.model_validate_json(body)
        assert (quality.plot_id, quality.level, quality.challenge) == (
            KNOWN.plot_id.hex(),
            level,
            KNOWN.challenge.hex(),
        )
        assert quality.line_points == hexadecimal(truncate_twice(KNOWN.xs[:8], 15 + level)[:count])
    paths = [head.split(" ")[1] for head in running.heads]
    assert paths == ["/v1/proofs", "/v1/qualities", "/v1/qualities"]
    assert running.connections == 1


def test_each_request_names_itself_its_deadline_and_what_was_lost(library: Path) -> None:
    modes: list[Behaviour] = [answers, lambda taken, _: taken.sendall(reply(b"", 503)), answers]

    def next_mode(taken: socket.socket, body: bytes) -> None:
        modes.pop(0)(taken, body)

    with sidecar(next_mode) as running:
        shim = Shim(library, sidecar=running.address, timeout_ms="9000")
        assert [shim.quality(KNOWN)[0], shim.quality(KNOWN)[0], shim.proof(KNOWN)[0]] == [OK, FAILED, OK]
    for number, head in enumerate(running.heads, 1):
        fields = dict(line.split(": ", 1) for line in head.splitlines()[1:])
        assert fields["X-Request-Id"] == f"shim-{os.getpid()}-{number}"
        assert 0 < int(fields["X-Deadline-Ms"]) < 9000
        assert fields["Accept"] == "application/octet-stream"
        lost = dict(pair.split("=") for pair in fields["X-Shim-Failures"].split(" "))
        expected = {"qualities": "0", "why": "none"} if number < 3 else {"qualities": "1", "why": "refused"}
        assert lost.items() >= {**expected, "proofs": "0", "fallbacks": "0", "pid": str(os.getpid())}.items()
        assert abs(int(lost["since"]) - time.time()) < 3600


def test_it_speaks_over_a_socket_file_as_well(library: Path, tmp_path: Path) -> None:
    with sidecar(answers, tmp_path / "sidecar.sock") as running:
        assert Shim(library, sidecar=running.address).proof(KNOWN) == (OK, NUMBERS)


def test_no_proof_is_no_failure_but_is_written_down(library: Path, tmp_path: Path) -> None:
    problem = reply(json.dumps({"code": "no_proof"}).encode(), 404)
    with sidecar(lambda taken, _: taken.sendall(problem)) as running:
        shim = Shim(library, sidecar=running.address, log=str(tmp_path / "shim.log"))
        assert [shim.proof(KNOWN)[0], shim.quality(KNOWN)[0]] == [NO_PROOF, NO_PROOF]
    assert [" no_proof 404 " in line for line in shim.lines()] == [True, True]
    assert "qualities=0 proofs=0 " in running.heads[-1]
    assert running.connections == 1


def in_pieces(taken: socket.socket, body: bytes) -> None:
    for byte in reply(right(body), 200, "Content-Type: application/octet-stream"):
        taken.sendall(bytes([byte]))


def and_leaves(taken: socket.socket, body: bytes) -> None:
    taken.sendall(reply(right(body), 200, "Connection: close"))
    raise EOFError


@pytest.mark.parametrize("behave", [in_pieces, and_leaves])
def test_answers_may_come_in_pieces_and_end_the_connection(library: Path, behave: Behaviour) -> None:
    with sidecar(behave) as running:
        shim = Shim(library, sidecar=running.address)
        assert [shim.quality(KNOWN) for _ in range(3)] == [(OK, (7, 9))] * 3
    assert running.connections == (3 if behave is and_leaves else 1)


def test_a_kept_connection_that_has_ended_costs_nothing(library: Path) -> None:
    with sidecar(answers) as running:
        shim = Shim(library, sidecar=running.address)
        for _ in range(5):
            assert shim.proof(KNOWN) == (OK, NUMBERS)
            running.hang_up()
    assert running.connections == 5


def test_a_connection_that_ends_on_the_request_is_tried_once_more(library: Path, tmp_path: Path) -> None:
    tries = iter(range(10))

    def second_time(taken: socket.socket, body: bytes) -> None:
        if next(tries) % 2 == 0:
            raise EOFError
        answers(taken, body)

    with sidecar(second_time) as running:
        shim = Shim(library, sidecar=running.address, log=str(tmp_path / "shim.log"))
        assert shim.proof(KNOWN) == (OK, NUMBERS)
    assert shim.lines() == []


def test_many_threads_share_the_library(library: Path) -> None:
    with sidecar(answers) as running:
        shim = Shim(library, sidecar=running.address)
        seen: list[bool] = []

        def harvest() -> None:
            seen.extend(shim.proof(KNOWN) == (OK, NUMBERS) for _ in range(5))
            seen.extend(shim.quality(KNOWN, 7) == (OK, (7, 9)) for _ in range(5))

        threads = [threading.Thread(target=harvest) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == [True] * 400


# -- what is no answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behave", "why"),
    [pytest.param(behave, why, id=name) for name, (behave, why) in HOSTILE.items()],
)
def test_what_is_no_answer_fails_and_is_told(
    library: Path, tmp_path: Path, behave: Behaviour, why: str
) -> None:
    with sidecar(behave) as running:
        limit = SHORT if why == "silent" else "15000"
        shim = Shim(library, sidecar=running.address, log=str(tmp_path / "shim.log"), timeout_ms=limit)
        began = time.monotonic()
        assert shim.quality(KNOWN)[0] == FAILED
        assert time.monotonic() - began < PATIENCE
        (line,) = shim.lines()
        assert re.fullmatch(
            rf"\S+Z pid=\d+ quality C1 {why}( \d+)? \d+ms id=shim-\d+-1 plot={KNOWN.plot_id[:8].hex()}", line
        ), line
        # The next one is not harmed by what is left of that: it has its own answer, and tells the sidecar.
        running.behave = answers
        assert shim.quality(KNOWN) == (OK, (7, 9))
        assert f"qualities=1 proofs=0 fallbacks=0 pid={os.getpid()}" in running.heads[-1]
        assert f"why={why} " in running.heads[-1]


def test_a_sidecar_that_takes_nothing_costs_no_more_than_the_deadline(library: Path, tmp_path: Path) -> None:
    """Frozen: the system takes connections for it until its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        shim = Shim(library, sidecar=address, log=str(tmp_path / "shim.log"), timeout_ms=SHORT)
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(shim.proof(KNOWN)[0])) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert results == [FAILED] * 12
    assert {line.split(" ")[4] for line in shim.lines()} <= {"silent", "unreachable"}


def test_a_sidecar_that_is_not_there_is_told_and_found_when_it_is_back(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "sidecar.sock"
    shim = Shim(library, sidecar=f"unix:{path}", log=str(tmp_path / "shim.log"))
    assert [shim.quality(KNOWN)[0], shim.proof(KNOWN)[0]] == [FAILED, FAILED]
    assert [" unreachable " in line for line in shim.lines()] == [True, True]
    with sidecar(answers, path) as running:
        assert shim.proof(KNOWN) == (OK, NUMBERS)
        assert "qualities=1 proofs=1 " in running.heads[0]


def test_a_sidecar_that_is_restarted_loses_no_look_up(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "sidecar.sock"
    shim = Shim(library, sidecar=f"unix:{path}", log=str(tmp_path / "shim.log"))
    with sidecar(answers, path):
        assert shim.proof(KNOWN)[0] == OK
    asked: list[int] = []
    thread = threading.Thread(target=lambda: asked.append(shim.proof(KNOWN)[0]))
    thread.start()
    with sidecar(answers, path):
        thread.join()
    assert asked == [OK]
    assert shim.lines() == []
