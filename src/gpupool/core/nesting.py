"""How deep a JSON text is nested, found out before a parser that recurses is let at it."""

import re
from typing import Final

MOST_LEVELS: Final = 32
"""Levels of lists and objects in a message; the deepest of ours has six."""
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def is_deeper(text: bytes, levels: int = MOST_LEVELS) -> bool:
    """Tell whether lists and objects in a JSON text are nested deeper than ``levels``; brackets in strings do not count."""
    # Nearly every message has fewer brackets than levels are allowed, and counting is fast.
    if text.count(b"[") + text.count(b"{") <= levels:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", text).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > levels:
            return True
    return False
