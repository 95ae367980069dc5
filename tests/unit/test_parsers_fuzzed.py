"""Whatever arrives, from a peer or from a disk, is a message or a refusal: no parser fails in any other way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from gpupool.agent.journal import Entries, Journal
from gpupool.contracts.agent_link import Command, JoinRequest, LogsOrder, Report, StartOrder, StopOrder
from gpupool.contracts.control import DeployRequest, ScaleRequest
from gpupool.contracts.feed import EndpointsView
from gpupool.contracts.problems import Problem, describe, error_of
from gpupool.contracts.recompute import ProofReply, ProofRequest, QualityReply, QualityRequest
from gpupool.core.errors import GpupoolError, InvalidInputError
from gpupool.core.records import ProcessRecord
from gpupool.recompute.server.questions import read_proof_question, read_quality_question
from gpupool.runtimes.process.records import RunFolder, RunRecord

MESSAGES: list[type[BaseModel]] = [
    *(
        Command,
        JoinRequest,
        LogsOrder,
        Report,
        StartOrder,
        StopOrder,
        DeployRequest,
        ScaleRequest,
        EndpointsView,
    ),
    *(Problem, ProofRequest, ProofReply, QualityRequest, QualityReply),
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**40)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "a", "pl-1", "start", "chute", "0x0", "f" * 64, "2026-01-01T00:00:00Z", "active", "-1"]
    )
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def near(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with the fields of a message and values of any kind."""
    return st.dictionaries(st.sampled_from(names) | st.text(max_size=5), JSON, max_size=12)


@pytest.mark.parametrize("kind", MESSAGES)
@settings(max_examples=150)
@given(data=st.data())
def test_a_message_is_read_or_refused_in_short_words(kind: type[BaseModel], data: st.DataObject) -> None:
    value = data.draw(near(sorted(kind.model_fields)) | JSON)
    try:
        kind.model_validate(value)
    except ValidationError as error:
        assert 0 < len(describe(error)) < 10_000
    try:
        kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        assert 0 < len(describe(error)) < 10_000


@pytest.mark.parametrize("kind", MESSAGES)
@given(text=st.binary(max_size=200))
def test_bytes_are_no_message(kind: type[BaseModel], text: bytes) -> None:
    try:
        kind.model_validate_json(text)
    except ValidationError as error:
        assert describe(error)


@pytest.mark.parametrize("kind", MESSAGES)
def test_depth_is_refused_and_does_not_exhaust_the_stack(kind: type[BaseModel]) -> None:
    for opening in (b"[", b'{"payload":', b'{"data":{"a":'):
        with pytest.raises(ValidationError):
            kind.model_validate_json(opening * 200_000)


@pytest.mark.parametrize("read", [read_proof_question, read_quality_question])
@settings(max_examples=200)
@given(data=st.data())
def test_a_question_is_read_or_refused(read: Callable[[bytes], object], data: st.DataObject) -> None:
    fields = sorted({*ProofRequest.model_fields, *QualityRequest.model_fields})
    body = data.draw(
        (near(fields) | JSON).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200)
    )
    try:
        read(body)
    except InvalidInputError as error:
        assert 400 <= error.status < 500
        assert error.message


@given(st.integers(100, 599), JSON | near(sorted(Problem.model_fields)))
def test_an_error_answer_of_any_form_is_an_error_of_ours(status: int, body: object) -> None:
    assert isinstance(error_of(status, body), GpupoolError)


@given(JSON | near(["node_id", "last_seq", "wanted"]))
def test_a_journal_of_any_content_is_read_as_one(value: object) -> None:
    assert isinstance(Entries.from_json(value), Entries)


@given(JSON | near(["role", "instance_id", "process", "host", "port"]))
def test_a_process_record_of_any_content_is_one_or_none(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = tmp_path_factory.mktemp("record") / "control.json"
    path.write_text(json.dumps(value))
    assert isinstance(ProcessRecord.read(path), ProcessRecord | None)


@given(JSON | near(["order", "host", "phase", "port", "process", "uid", "restarts"]))
def test_a_run_record_of_any_content_is_one_or_none(value: object) -> None:
    assert isinstance(RunRecord.from_json(value), RunRecord | None)


GARBAGE = [b"", b"{", b"\0" * 100, b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"null", b"1" * 10_000]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_files_that_a_crash_or_a_disk_has_spoilt_are_no_records(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    assert ProcessRecord.read(path) is None
    assert RunFolder(tmp_path).read() is None
    assert Journal.load(path).wanted == {}
