"""An answer that is written as our servers do is known without a JSON reader, and nothing else is taken for one."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpupool.contracts.recompute import ProofReply, QualityReply
from gpupool.recompute.proxy.http_exchange import QUESTION_PATHS, is_usual
from gpupool.recompute.proxy.http_links import HttpReply

PROOFS, QUALITIES = QUESTION_PATHS
NUMBERS = [f"{1000003 * x:x}" for x in range(64)]


def usual(path: bytes, body: bytes, kind: bytes = b"application/json") -> bool:
    return is_usual(path, HttpReply(200, {b"content-type": kind}, body))


def has_shape(path: bytes, body: bytes) -> bool:
    """Say the same of JSON in the long way."""
    _, name, count = QUESTION_PATHS[path]
    try:
        numbers = json.loads(body)[name]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(numbers, list) and len(numbers) == count and all(type(x) is str for x in numbers)


@pytest.mark.parametrize("checked", ["challenge", "tables"])
def test_what_our_servers_write_is_known(checked: str) -> None:
    proof = ProofReply.model_validate({"proof": NUMBERS, "checked": checked})
    quality = QualityReply(x=NUMBERS[:2])
    for path, message in ((PROOFS, proof), (QUALITIES, quality)):
        assert usual(path, message.model_dump_json().encode())
        assert usual(path, json.dumps(message.model_dump()).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'["1"]}',
        b'x["1-2"]}',
        b'{"proof":[]}',
        b'{"proof":["1"]}',
        b'{"x":["1"]}',
        b'{"x":["1","2"]',
    ],
)
def test_what_is_short_or_begins_otherwise_is_not(body: bytes) -> None:
    assert not usual(PROOFS, body)
    assert not usual(QUALITIES, body)


def test_an_answer_to_the_other_question_or_in_binary_is_not() -> None:
    body = json.dumps({"proof": NUMBERS}).encode()
    assert usual(PROOFS, body)
    assert not usual(QUALITIES, body)
    assert not usual(PROOFS, body, b"application/octet-stream")


@settings(max_examples=500)
@given(at=st.integers(0, 1200), cut=st.integers(0, 12), put=st.binary(max_size=6))
@example(at=0, cut=1200, put=b"")
@example(at=10, cut=0, put=b'"","')
@example(at=16, cut=0, put=b"a0")
def test_whatever_is_changed_nothing_without_the_shape_is_known(at: int, cut: int, put: bytes) -> None:
    body = json.dumps({"proof": NUMBERS, "checked": "tables"}).encode()
    changed = body[:at] + put + body[at + cut :]
    assert not usual(PROOFS, changed) or has_shape(PROOFS, changed)
