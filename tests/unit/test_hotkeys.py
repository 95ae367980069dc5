"""Hotkeys: known addresses, files as bittensor writes them, and whatever is no key."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.validators.hotkeys import (
    Hotkey,
    address_of,
    load_hotkey,
    make_hotkey,
    public_of,
    verified,
)

ALICE = Hotkey(bytes.fromhex("e5be9a5092b81bca64be81d212e7f2f9eba183bb7a90954f7b76361f6edb5c0a"))
"""The development key that every substrate tool knows."""


def test_a_known_seed_gives_its_known_address() -> None:
    assert ALICE.address == "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"


def test_a_signature_is_good_for_its_message_and_key_only() -> None:
    other = Hotkey(bytes(32))
    signature = ALICE.sign(b"message")
    assert verified(ALICE.address, b"message", signature)
    assert not verified(ALICE.address, b"massage", signature)
    assert not verified(other.address, b"message", signature)


def test_the_same_signature_has_one_form_only() -> None:
    """Else whoever saw one could send it again in another."""
    order = 2**252 + 27742317777372353535851937790883648493
    signature = ALICE.sign(b"message")
    half = int.from_bytes(signature[32:], "little") & (2**255 - 1)
    unmarked = signature[:32] + half.to_bytes(32, "little")
    unreduced = signature[:32] + (half + order | 2**255).to_bytes(32, "little")
    assert not verified(ALICE.address, b"message", unmarked)
    assert not verified(ALICE.address, b"message", unreduced)


@given(st.binary(max_size=70), st.text(max_size=60))
def test_nothing_else_is_a_signature_or_an_address(signature: bytes, address: str) -> None:
    assert not verified(ALICE.address, b"message", signature)
    assert not verified(address, b"message", ALICE.sign(b"message"))


@pytest.mark.parametrize("public", [b"\xff" * 32, bytes(32), b"\1" * 32])
def test_a_key_that_is_no_point_has_signed_nothing(public: bytes) -> None:
    assert not verified(address_of(public), b"message", b"\x80" * 64)


@given(st.binary(min_size=32, max_size=32))
def test_addresses_go_there_and_back(public: bytes) -> None:
    assert public_of(address_of(public)) == public


@pytest.mark.parametrize("position", range(0, 48, 5))
def test_one_wrong_letter_is_found(position: int) -> None:
    letter = "2" if ALICE.address[position] != "2" else "3"
    with pytest.raises(InvalidInputError, match="no SS58 address"):
        public_of(ALICE.address[:position] + letter + ALICE.address[position + 1 :])


def test_a_secret_shows_nowhere() -> None:
    assert repr(ALICE) == str(ALICE) == f"Hotkey({ALICE.address})"
    with pytest.raises(TypeError, match="does not leave"):
        pickle.dumps(ALICE)


def test_a_made_key_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "hotkey"
    made = make_hotkey(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_hotkey(path).address == made.address
    with pytest.raises(InvalidInputError, match="exists already"):
        make_hotkey(path)


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "hotkey", "{}", 0o640)
    with pytest.raises(EnvironmentProblemError, match="Others may read") as told:
        load_hotkey(path)
    assert told.value.remedy == f"Keep them out: chmod 600 {path}"


SEED = "0x" + "11" * 32


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not json", "no hotkey file"),
        ("[]", "no hotkey file"),
        ("{}", "secretSeed or ss58Address is missing"),
        ("$NACL" + "x" * 100, "no hotkey file"),
        (json.dumps({"secretSeed": "0xzz", "ss58Address": ALICE.address}), "not hexadecimal"),
        (json.dumps({"secretSeed": "0x11", "ss58Address": ALICE.address}), "has 32 bytes, not 1"),
        (json.dumps({"secretSeed": SEED, "ss58Address": ALICE.address}), "is that of 5"),
    ],
    ids=range(7),
)
def test_what_is_no_hotkey_file(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why) as told:
        load_hotkey(written(tmp_path / "hotkey", text))
    assert SEED not in told.value.message + told.value.remedy


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblemError, match="cannot be read"):
        load_hotkey(tmp_path / "none")
