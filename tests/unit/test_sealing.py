"""Sealing: only the same key under the same name opens, and the database never holds a workload's secret in clear."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_samples import a_spec, a_workload, new_database
from gpupool.core.errors import EnvironmentProblemError, StorageError
from gpupool.core.sealing import Seal
from gpupool.core.secret_names import is_secret_name
from gpupool.store.open import open_store
from gpupool.store.sql_store import SqlStore

SEAL = Seal(bytes(range(64)))
SECRET = "planted-secret-5d1f"


@given(st.text(), st.text())
def test_what_was_sealed_opens_under_its_name(name: str, text: str) -> None:
    sealed = SEAL.close(name, text)
    assert SEAL.open(name, sealed) == text
    assert SEAL.close(name, text) == sealed
    assert len(text) < 4 or text not in sealed


@given(st.text(), st.integers(0, 200), st.integers(1, 255))
def test_a_changed_value_does_not_open(text: str, position: int, change: int) -> None:
    prefix, _, body = SEAL.close("NAME", text).rpartition(":")
    raw = bytearray(base64.urlsafe_b64decode(body))
    raw[position % len(raw)] ^= change
    with pytest.raises(StorageError, match="NAME"):
        SEAL.open("NAME", f"{prefix}:{base64.urlsafe_b64encode(raw).decode()}")


@given(st.text(max_size=50).filter(lambda text: text != ""))
def test_rubbish_behind_the_mark_is_refused(rubbish: str) -> None:
    with pytest.raises(StorageError):
        SEAL.open("NAME", f"sealed:1:{rubbish}")


def test_another_name_or_key_does_not_open() -> None:
    sealed = SEAL.close("HF_TOKEN", SECRET)
    with pytest.raises(StorageError):
        SEAL.open("OTHER", sealed)
    with pytest.raises(StorageError, match=r"keys/seal\.key|sealing key"):
        Seal(bytes(64)).open("HF_TOKEN", sealed)
    assert SEAL.open("HF_TOKEN", "never sealed") == "never sealed"


def test_the_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "seal.key"
    sealed = Seal.load_or_make(path).close("A", SECRET)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Seal.load_or_make(path).open("A", sealed) == SECRET
    path.write_text("no key\n")
    with pytest.raises(EnvironmentProblemError, match=r"seal\.key"):
        Seal.load_or_make(path)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True),
        ("LANG", False),
        ("MAX_TOKENS", False),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


async def test_the_database_never_holds_a_secret_in_clear(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    kept = a_workload(spec=replace(a_spec(), env={"HF_TOKEN": SECRET, "EMPTY": ""}))
    store = await open_store(path, seal=SEAL)
    async with store.write() as writer:
        await writer.put_workload(kept)
    async with store.read() as view:
        assert await view.workload(kept.id) == kept
        assert await view.workload_by_name(kept.name) == kept
        assert list(await view.workloads()) == [kept]
    found = {file.name: SECRET.encode() in file.read_bytes() for file in files(tmp_path)}
    assert "pool.db" in found
    assert not any(found.values()), found
    await store.close()
    before = path.read_bytes()
    with pytest.raises(
        StorageError, match="HF_TOKEN cannot be opened with this pool's sealing key"
    ) as caught:
        await open_store(path, seal=Seal(bytes(64)))
    assert "keys/seal.key of the state folder that this database belongs to" in caught.value.remedy
    assert path.read_bytes() == before


async def test_what_an_earlier_version_kept_in_clear_is_sealed_at_the_next_start(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    kept = a_workload(spec=replace(a_spec(), env={"HF_TOKEN": SECRET}))
    plain = a_workload(spec=a_spec(name="plain"))
    store = await open_store(path)
    async with store.write() as writer:
        await writer.put_workload(kept)
        await writer.put_workload(plain)
        await writer.put_workload(replace(kept, version=2))
    await store.close()
    assert SECRET.encode() in path.read_bytes()
    store = await open_store(path, seal=SEAL)
    assert [file.name for file in files(tmp_path) if SECRET.encode() in file.read_bytes()] == []
    async with store.read() as view:
        assert await view.workload(kept.id) == replace(kept, version=2)
        assert await view.workload(plain.id) == plain
    assert isinstance(store, SqlStore)
    assert await store.seal_clear() == 0
    await store.close()


def files(folder: Path) -> list[Path]:
    """Return the files of a folder."""
    return list(folder.iterdir())


async def test_a_lost_key_does_not_stop_a_pool_for_what_is_deleted(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    gone = a_workload(spec=replace(a_spec(), env={"HF_TOKEN": SECRET}), deleted=True)
    store = await open_store(path, seal=SEAL)
    async with store.write() as writer:
        await writer.put_workload(gone)
    await store.close()
    stranger = await open_store(path, seal=Seal(bytes(64)))
    async with stranger.read() as view:
        (seen,) = await view.workloads(deleted=True)
        assert seen == await view.workload(gone.id) == replace(gone, spec=replace(gone.spec, env={}))
    await stranger.close()


def test_a_key_file_that_cannot_be_read_is_told_and_stays(tmp_path: Path) -> None:
    (tmp_path / "folder.key").mkdir()
    with pytest.raises(EnvironmentProblemError, match="Is a directory"):
        Seal.load_or_make(tmp_path / "folder.key")
    (tmp_path / "seal.key").write_bytes(b"\xff\xfe")
    with pytest.raises(EnvironmentProblemError, match="it is no text"):
        Seal.load_or_make(tmp_path / "seal.key")
    assert (tmp_path / "seal.key").read_bytes() == b"\xff\xfe"
