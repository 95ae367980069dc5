"""Output files: cutting them under a writer, and reading their end."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpupool.core.errors import NotFoundError
from gpupool.runtimes.process.closing_words import closing_words
from gpupool.runtimes.process.output import copy_at_most, last_words, open_for_append, rotate, size_of, tail


def test_a_small_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    assert not rotate(path, 10)
    path.write_bytes(b"x" * 9)
    assert not rotate(path, 10)
    assert path.read_bytes() == b"x" * 9


def test_a_writer_goes_on_at_the_new_start(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(writer, b"first\n" * 4)
        assert rotate(path, 24)
        os.write(writer, b"second\n")
    finally:
        os.close(writer)
    assert path.read_bytes() == b"second\n"
    assert (tmp_path / "output.log.1").read_bytes() == b"first\n" * 4


def test_three_files_are_kept_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    for text in (b"aaaa", b"bbbb", b"cccc", b"dddd"):
        path.write_bytes(text)
        assert rotate(path, 4)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "output.log": b"",
        "output.log.1": b"dddd",
        "output.log.2": b"cccc",
    }


def test_of_a_flood_only_the_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"0123456789abcdef")
    assert rotate(path, 4)
    assert (tmp_path / "output.log.1").read_bytes() == b"cdef"


def test_a_writer_that_outruns_the_copy_is_not_followed_for_ever(tmp_path: Path) -> None:
    with open("/dev/zero", "rb") as endless, (tmp_path / "copy").open("wb") as target:
        copy_at_most(endless, target, 1_000_001)
    assert (tmp_path / "copy").stat().st_size == 1_000_001


def test_the_tail_reaches_into_older_files(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text("one\ntwo\nthree\n")
    rotate(path, 14)
    path.write_text("four\n")
    assert tail(path, 3) == "two\nthree\nfour\n"
    assert tail(path, 1) == "four\n"
    assert tail(path, 100) == "one\ntwo\nthree\nfour\n"


def test_the_tail_has_a_limit_and_survives_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"\xff\xfe\n" + b"y" * (2 << 20))
    assert len(tail(path, 10_000)) <= 1 << 20
    path.write_bytes(b"\xff\xfe\n")
    assert tail(path, 1) == "\ufffd\ufffd\n"


def test_no_output_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        tail(tmp_path / "output.log", 1)


def test_last_words_are_short_and_printable(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    assert last_words(path) == ""
    path.write_text("start\nTraceback\n\x1b[31mValueError: bad\x1b[0m\n\n")
    assert last_words(path) == "Traceback | ValueError: bad"
    path.write_text("z" * 5000)
    assert last_words(path) == "z" * 297 + "..."


def test_last_words_are_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text("a" * 4090 + " cut in the middle\nthe end\n")
    assert last_words(path) == "the end"
    path.write_text("b" * 290 + "\nno room for two\n")
    assert last_words(path) == "no room for two"


def test_of_a_structured_line_event_and_error_are_the_last_words(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text('{"level": "error", "event": "not started", "error": "no weights", "at": 1}\n')
    assert last_words(path) == "not started: no weights"
    path.write_text('{"event": "over", "at": 1}\n{"a": 1}\n{"torn\n')
    assert last_words(path) == '{"a": 1} | {"torn'


def test_last_words_of_an_earlier_launch_are_not_taken_for_this_one_s(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text("first launch\n")
    before = size_of(path)
    assert last_words(path, before) == ""
    with path.open("a") as file:
        file.write("second\n")
    assert last_words(path, before) == "second"
    path.write_text("cut\n")
    assert last_words(path, before) == "cut"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that is none of the workload's."""
    path = tmp_path / "secret"
    path.write_bytes(b"planted-secret\n" * 10)
    return path


def replaced_by_link(run: Path, secret: Path) -> None:
    (run / "output.log").symlink_to(secret)


def replaced_by_second_name(run: Path, secret: Path) -> None:
    os.link(secret, run / "output.log")


def replaced_by_pipe(run: Path, _secret: Path) -> None:
    os.mkfifo(run / "output.log")


def older_replaced_by_link(run: Path, secret: Path) -> None:
    (run / "output.log").write_bytes(b"own\n" * 100)
    (run / "output.log.1").symlink_to(secret)


TRICKS = [replaced_by_link, replaced_by_second_name, replaced_by_pipe, older_replaced_by_link]


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_with_an_output_reaches_another_file(
    tmp_path: Path, secret: Path, trick: Callable[[Path, Path], None]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    trick(run, secret)
    output = run / "output.log"
    assert "planted" not in tail(output, 1000)
    assert "planted" not in last_words(output)
    with suppress(OSError):
        rotate(output, most_bytes=10)
    with suppress(OSError), open_for_append(output, None) as file:
        file.write(b"more\n")
    assert secret.read_bytes() == b"planted-secret\n" * 10


def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path, secret: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    secret.rename(elsewhere / "output.log")
    (tmp_path / "run").symlink_to(elsewhere)
    output = tmp_path / "run" / "output.log"
    assert "planted" not in tail(output, 1000)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        rotate(output, most_bytes=10)
    assert (elsewhere / "output.log").read_bytes() == b"planted-secret\n" * 10


def test_an_advice_counts_as_the_end_though_a_library_writes_on() -> None:
    fault = ["It cannot serve the file.", "What to do: look at the file."]
    late = ["thread: cleaning up", "thread: bye"]
    assert closing_words("\n".join(["loading", *fault, *late])) == " | ".join(fault)
    assert closing_words("\n".join([*fault, *(["more"] * 12)])) == "more | more"
