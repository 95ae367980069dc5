"""AES-128-CBC as instances and validators of this protocol seal short words to each other.

Source: chutes.md section 2.4. A key is 32 hexadecimal digits. The cipher does not authenticate; that the words are
the expected ones does.
"""

import base64
import binascii
import os
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

_BLOCK_BITS: Final = 128
_IV_BYTES: Final = 16
_MOST_TEXT: Final = 64 * 1024


def sealed(key: str, words: str) -> tuple[str, str]:
    """Return the IV in hexadecimal and the sealed words in base64."""
    iv = os.urandom(_IV_BYTES)
    return iv.hex(), base64.b64encode(_encrypt(bytes.fromhex(key), iv, words)).decode()


def sealed_whole(key: bytes, words: str) -> str:
    """Return base64 of the IV and the sealed words behind it; ``key``: 16 bytes."""
    iv = os.urandom(_IV_BYTES)
    return base64.b64encode(iv + _encrypt(key, iv, words)).decode()


def opened(key: str, iv: str, text: str) -> str | None:
    """Return the words in ``text``; None where they were not sealed with this key and IV."""
    if len(text) > _MOST_TEXT:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
        decryptor = Cipher(algorithms.AES128(bytes.fromhex(key)), modes.CBC(bytes.fromhex(iv))).decryptor()
        unpadder = PKCS7(_BLOCK_BITS).unpadder()
        padded = decryptor.update(raw) + decryptor.finalize()
        return (unpadder.update(padded) + unpadder.finalize()).decode()
    except (ValueError, binascii.Error):
        return None


def opened_whole(key: bytes, text: str) -> str | None:
    """Return the words behind the IV in ``text``; the other half of `sealed_whole`."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return opened(key.hex(), raw[:_IV_BYTES].hex(), base64.b64encode(raw[_IV_BYTES:]).decode())


def _encrypt(key: bytes, iv: bytes, words: str) -> bytes:
    padder = PKCS7(_BLOCK_BITS).padder()
    padded = padder.update(words.encode()) + padder.finalize()
    encryptor = Cipher(algorithms.AES128(key), modes.CBC(iv)).encryptor()
    return encryptor.update(padded) + encryptor.finalize()
