"""Gigahorse frames, and how the first bytes of a connection tell what it speaks.

A frame is a ``u32`` little-endian length and that many opaque bytes. Its fourth byte is zero up to 16 MiB, far above
any limit here, while HTTP begins with letters; TLS is told first, for its hello would read as a legal length.
"""

from enum import Enum
from typing import Final

HEADER: Final = 4
FRAME_MOST: Final = 1024 * 1024
"""Largest payload that is ever a frame, in bytes."""
TLS_HELLO: Final = b"\x16\x03"
KEEP_ALIVE: Final = b"\x00\x00\x00\x00"
"""A frame of no length, which some builds take as a sign of life and others as a fault."""


class Speech(Enum):
    """What a connection speaks."""

    UNDECIDED = "undecided"
    TLS = "tls"
    FRAMES = "frames"
    HTTP = "http"


UNDECIDED: Final = Speech.UNDECIDED
TLS: Final = Speech.TLS
FRAMES: Final = Speech.FRAMES
HTTP: Final = Speech.HTTP
# Looking these up in their enumeration takes longer than all else that a new connection is asked.


class FrameError(Exception):
    """These bytes are no frame, or one that is too large."""


def sniff(first: bytes | bytearray) -> Speech:
    """Return what a connection speaks that begins with ``first``; UNDECIDED while four bytes are not there."""
    if first[:2] == TLS_HELLO:
        return TLS
    if len(first) < HEADER:
        return UNDECIDED
    return FRAMES if first[3] == 0 else HTTP


def frame_end(data: bytes | bytearray, limit: int) -> int:
    """Return where the first frame of ``data`` ends, header included; 0 while that is not known.

    The end may lie beyond what has come. Raises FrameError where the payload is larger than ``limit`` bytes.
    """
    if len(data) < HEADER:
        return 0
    size = int.from_bytes(data[:HEADER], "little")
    if size > limit:
        raise FrameError(f"a frame of {size} bytes, more than {limit}")
    return HEADER + size
