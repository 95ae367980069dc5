"""Hotkeys: the sr25519 keys under which miners, validators and operators sign, in the files that bittensor writes.

The secret half stays in the process that loaded it: no text form of a key shows it, and a file that others may read is
refused. Addresses are SS58 of the substrate network's format 42.
"""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Final

import sr25519  # type: ignore[import-untyped]

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.core.files import write_private

_FORMAT: Final = b"\x2a"
_SEPARATOR: Final = b"SS58PRE"
_CHECK_BYTES: Final = 2
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_MOST_FILE: Final = 64 * 1024
_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}
_ADDRESS_LETTERS: Final = range(46, 50)


class Hotkey:
    """A whole key."""

    def __init__(self, seed: bytes) -> None:
        """``seed``: the 32 secret bytes."""
        if len(seed) != _KEY_BYTES:
            raise InvalidInputError(f"A hotkey's seed has {_KEY_BYTES} bytes, not {len(seed)}.")
        self._public, self._secret = sr25519.pair_from_seed(seed)
        self.address = address_of(self._public)
        """The public half in SS58."""

    def __repr__(self) -> str:
        return f"Hotkey({self.address})"

    def __reduce__(self) -> str:
        raise TypeError("a hotkey does not leave its process")

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes, another one each time."""
        signature: bytes = sr25519.sign((self._public, self._secret), message)
        return signature


def verified(address: str, message: bytes, signature: bytes) -> bool:
    """Tell whether whoever holds ``address`` has signed ``message``; False too for what is no address or signature."""
    if len(signature) != _SIGNATURE_BYTES:
        return False
    try:
        public = public_of(address)
    except InvalidInputError:
        return False
    try:
        return bool(sr25519.verify(signature, message, public))
    except (TypeError, ValueError):
        return False


def address_of(public: bytes) -> str:
    """Return the SS58 address of a public key of 32 bytes."""
    body = _FORMAT + public
    return _base58(body + _checksum(body))


def public_of(address: str) -> bytes:
    """Return the public key in an SS58 address; InvalidInputError where it is none of format 42, or was mistyped."""
    raw = _unbase58(address)
    body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
    if len(body) != 1 + _KEY_BYTES or body[:1] != _FORMAT or check != _checksum(body):
        raise _no_address(address)
    return body[1:]


def load_hotkey(path: Path) -> Hotkey:
    """Return the key in a file as bittensor writes them (JSON with ``secretSeed`` and ``ss58Address``).

    Raises EnvironmentProblemError where it cannot be read, or others may read it; InvalidInputError where it holds no
    key, or one of another address than it says.
    """
    found = _read(path)
    seed, address = found.get("secretSeed"), found.get("ss58Address")
    if not isinstance(seed, str) or not isinstance(address, str):
        raise InvalidInputError(
            f"The file {path} holds no hotkey: secretSeed or ss58Address is missing.",
            remedy="Give the hotkey's own file, such as ~/.bittensor/wallets/NAME/hotkeys/NAME; one that is encrypted "
            "must be decrypted first.",
        )
    try:
        key = Hotkey(bytes.fromhex(seed.removeprefix("0x")))
    except ValueError as error:
        raise InvalidInputError(f"The secretSeed in {path} is not hexadecimal.") from error
    if key.address != address:
        raise InvalidInputError(
            f"The file {path} says {address[:60]}, but its seed is that of {key.address}.",
            remedy="Take the file from its backup.",
        )
    return key


def make_hotkey(path: Path) -> Hotkey:
    """Make a new key, keep it in a new file (mode 0600) and return it; InvalidInputError where the file exists."""
    if path.exists():
        raise InvalidInputError(f"{path} exists already.", remedy="Give another name, or use the key in it.")
    seed = os.urandom(_KEY_BYTES)
    key = Hotkey(seed)
    public = "0x" + public_of(key.address).hex()
    text = {
        "accountId": public,
        "publicKey": public,
        "secretSeed": "0x" + seed.hex(),
        "ss58Address": key.address,
    }
    write_private(path, json.dumps(text))
    return key


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            seen = os.fstat(file.fileno())
            text = file.read(_MOST_FILE)
    except OSError as error:
        raise EnvironmentProblemError(
            f"The hotkey file {path} cannot be read: {error.strerror}.",
            remedy="Name the right file, and let this user read it.",
        ) from error
    if stat.S_IMODE(seen.st_mode) & 0o077:
        raise EnvironmentProblemError(
            f"Others may read the hotkey file {path}.", remedy=f"Keep them out: chmod 600 {path}"
        )
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInputError(f"The file {path} is no hotkey file.")
    return found


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(_SEPARATOR + body).digest()[:_CHECK_BYTES]


def _base58(raw: bytes) -> str:
    number, letters = int.from_bytes(raw), ""
    while number:
        number, value = divmod(number, len(_ALPHABET))
        letters = _ALPHABET[value] + letters
    return letters


def _unbase58(text: str) -> bytes:
    if len(text) not in _ADDRESS_LETTERS or any(character not in _VALUES for character in text):
        raise _no_address(text)
    number = 0
    for character in text:
        number = number * len(_ALPHABET) + _VALUES[character]
    try:
        return number.to_bytes(1 + _KEY_BYTES + _CHECK_BYTES)
    except OverflowError as error:
        raise _no_address(text) from error


def _no_address(text: str) -> InvalidInputError:
    return InvalidInputError(
        f"{text[:60]!r} is no SS58 address.", remedy="Copy it anew; it begins with 5 and has 48 letters."
    )
