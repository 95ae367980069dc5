"""The file of a node's key: made once, and a broken one is named instead of replaced."""

from pathlib import Path

import pytest

from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.keys import SigningKey


def test_a_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    assert SigningKey.load_or_make(path).public_text == SigningKey.load_or_make(path).public_text
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"AAAA", b"not base64: \xff\xfe", b"A"])
def test_a_broken_key_is_told_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.key"
    path.write_bytes(content)
    with pytest.raises(EnvironmentProblemError, match=str(path)):
        SigningKey.load_or_make(path)
    assert path.read_bytes() == content


def test_a_key_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "node.key").mkdir()
    with pytest.raises(EnvironmentProblemError, match="cannot be read"):
        SigningKey.load_or_make(tmp_path / "node.key")
