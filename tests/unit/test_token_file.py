"""The file of a bearer token: made where there is none, and named where it cannot be read."""

from pathlib import Path

import pytest

from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.tokens import load_or_make_token


@pytest.mark.parametrize("content", [None, b"", b"\n"])
def test_one_is_made_where_there_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "operator.token"
    if content is not None:
        path.write_bytes(content)
    made = load_or_make_token(path)
    assert len(made) > 40
    assert load_or_make_token(path) == made
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_no_text_is_told_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "operator.token"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EnvironmentProblemError, match="it is no text"):
        load_or_make_token(path)
    assert path.read_bytes() == b"\xff\xfe\x00"


def test_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "operator.token").mkdir()
    with pytest.raises(EnvironmentProblemError, match="cannot be read"):
        load_or_make_token(tmp_path / "operator.token")
