"""The demo's weights: found in their package, and refused in words when they are not whole."""

import importlib
from pathlib import Path

import pytest

from gpupool.core.errors import InvalidInputError
from gpupool.engines import weights
from gpupool.engines.weights import PACKAGED_MODELS, WeightsError, find_weights


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that carries one 8-byte GGUF file and is installed in a folder of its own; returns the file."""
    info = tmp_path / "carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (info / "RECORD").write_text("carrier/model.gguf,,8\ncarrier/__init__.py,,0\n")
    model = tmp_path / "carrier" / "model.gguf"
    model.parent.mkdir()
    model.write_bytes(b"GGUF\x03\x00\x00\x00")
    monkeypatch.setitem(weights.PACKAGED_MODELS, "small", "carrier")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return model


def test_every_packaged_model_is_installed_and_whole() -> None:
    for model in PACKAGED_MODELS:
        assert find_weights(model).stat().st_size > 50_000_000


def test_a_whole_file_is_found_by_name(package: Path) -> None:
    assert find_weights("small") == package


def test_a_truncated_file_is_refused_with_both_sizes(package: Path) -> None:
    package.write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match="has 4 bytes instead of 8") as caught:
        find_weights("small")
    assert "./up" in caught.value.remedy


def test_a_missing_file_is_refused_by_its_path(package: Path) -> None:
    package.unlink()
    with pytest.raises(WeightsError, match=r"model\.gguf cannot be read: No such file"):
        find_weights("small")


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(weights.PACKAGED_MODELS, "small", "no-such-carrier")
    with pytest.raises(WeightsError, match="no-such-carrier"):
        find_weights("small")


def test_a_package_without_weights_is_named(package: Path) -> None:
    record = package.parent.parent / "carrier-1.0.dist-info" / "RECORD"
    record.write_text("carrier/__init__.py,,0\n")
    with pytest.raises(WeightsError, match="carrier carries no GGUF file"):
        find_weights("small")


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"GGUF....")
    monkeypatch.chdir(tmp_path)
    assert find_weights("mine.gguf") == tmp_path / "mine.gguf"


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "mine.gguf"
    other.write_bytes(b"PK\x03\x04")
    with pytest.raises(WeightsError, match="is not a GGUF file"):
        find_weights(str(other))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match="no model 'gpt-17'") as caught:
        find_weights("gpt-17")
    assert "smollm2" in caught.value.remedy
