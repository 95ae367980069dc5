"""Identifiers: short, sortable by time of birth, with a prefix that tells a reader what they name.

An id is ``<prefix>-<26 characters>``: Crockford base 32 of 48 bits of milliseconds and 80 random bits (the ULID
layout), in lower case so that it can be a host name, a file name and a Kubernetes label.
"""

import secrets
import time
from typing import Final, Literal

Prefix = Literal["node", "dev", "wl", "pl", "ep", "job", "ev", "rep", "req", "inst", "jt", "sil", "at"]
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: Prefix) -> str:
    """Return a fresh id such as ``node-01jdx4q0v9m3s8k2c6w7y5t1ra``."""
    value = (int(time.time() * 1000) & (2**48 - 1)) << 80 | secrets.randbits(80)
    return f"{prefix}-" + "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))
