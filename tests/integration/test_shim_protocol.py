"""The harvester's library and its sidecar: what is asked, what is taken for an answer, and what never is."""

import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mainnet
from gpupool.contracts.recompute import ProofRequest, QualityRequest, hexadecimal
from gpupool.harvester.building import compile_library
from gpupool.pos.truncation import truncate, truncate_twice
from shim_stage import FAILED, NO_PROOF, NUMBERS, OK, PATIENCE, Shim, answers, reply, right, sidecar

KNOWN = mainnet.K32[0]
SHORT = "400"
"""Milliseconds for what is to run into its deadline."""
Behaviour = Callable[[socket.socket, bytes], None]


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
    with sidecar(lambda taken, body: modes.pop(0)(taken, body)) as running:
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
        shim, seen = Shim(library, sidecar=running.address), []

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


def sends(answer: bytes) -> Behaviour:
    def behave(taken: socket.socket, body: bytes) -> None:
        taken.sendall(answer)

    return behave


def endless(taken: socket.socket, body: bytes) -> None:
    taken.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        taken.sendall(b"X-More: and more\r\n" * 100)


def half(taken: socket.socket, body: bytes) -> None:
    taken.sendall(reply(right(body))[:-4])
    raise EOFError


def resets(taken: socket.socket, body: bytes) -> None:
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    taken.close()
    raise EOFError


def leaves(taken: socket.socket, body: bytes) -> None:
    raise EOFError


def silent(taken: socket.socket, body: bytes) -> None:
    taken.recv(1)


def trickles(taken: socket.socket, body: bytes) -> None:
    pause = threading.Event()
    for byte in reply(bytes(256), 200, "X-Long: " + "x" * 4000):
        taken.sendall(bytes([byte]))
        pause.wait(0.02)


HEAD = b"HTTP/1.1 200 OK\r\n"
GARBLED = {
    "noise": b"\xff" * 9000,
    "noise with an end": b"\xff\xfe\r\n\r\n",
    "an empty head": b"\r\n\r\n",
    "zeros": bytes(64) + b"\r\n\r\n",
    "a zero in the head": HEAD + b"X: \0\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "http/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "a status of letters": b"HTTP/1.1 2x0 OK\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "continue": b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n",
    "no length": HEAD + b"\r\n" + bytes(8),
    "chunks": HEAD + b"Content-Length: 8\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n" + bytes(8),
    "two lengths": HEAD + b"Content-Length: 8\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "an empty length": HEAD + b"Content-Length: \r\n\r\n" + bytes(8),
    "a negative length": HEAD + b"Content-Length: -8\r\n\r\n" + bytes(8),
    "a signed length": HEAD + b"Content-Length: +8\r\n\r\n" + bytes(8),
    "a length and more": HEAD + b"Content-Length: 8, 8\r\n\r\n" + bytes(8),
    "a huge length": HEAD + b"Content-Length: 999999999\r\n\r\n" + bytes(8),
    "a length beyond any number": HEAD + b"Content-Length: 18446744073709551624\r\n\r\n" + bytes(8),
    "a line without a colon": HEAD + b"Content-Length 8\r\n\r\n" + bytes(8),
    "a line without a name": HEAD + b": 8\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "one byte less": reply(bytes(7)),
    "one byte more": reply(bytes(9)),
    "nothing": reply(b""),
    "a proof for a quality": reply(bytes(256)),
    "words": reply(b'{"x":["7","9"]}'),
    "more behind the answer": reply(bytes(8)) + b"x",
}  # fmt: skip
REFUSED = {
    "204": b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n",
    "a redirect": reply(b"", 307, "Location: http://example.com/"),
    "not found": reply(b"{}", 404),
    "busy": reply(b"{}", 429, "Retry-After: 1"),
    "no proof with another status": reply(b'"no_proof"', 500),
    "a long problem": reply(b"x" * 100_000, 502),
    "a problem of a terabyte": b"HTTP/1.1 502 Bad\r\nContent-Length: 999999999\r\n\r\nx",
}


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        *(pytest.param(sends(answer), "garbled", id=name) for name, answer in GARBLED.items()),
        *(pytest.param(sends(answer), "refused", id=name) for name, answer in REFUSED.items()),
        (endless, "garbled"),
        (half, "closed"),
        (leaves, "closed"),
        (resets, "closed"),
        (silent, "silent"),
        (trickles, "silent"),
        (sends(HEAD), "silent"),
        (sends(reply(bytes(8))[:-1]), "silent"),
    ],
)
def test_what_is_no_answer_fails_and_is_told(
    library: Path, tmp_path: Path, behave: Behaviour, why: str
) -> None:
    well: list[bool] = []
    with sidecar(lambda taken, body: (answers if well else behave)(taken, body)) as running:
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
        well.append(True)
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
