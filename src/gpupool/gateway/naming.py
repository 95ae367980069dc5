"""Puts the model's name, as the client said it, into what an upstream answers.

An upstream may know its model under another name (a file path, for one). Only the top-level ``model`` of an object is
changed, every other byte is kept, and nothing is parsed where a cheap look is enough: this runs for every event of
every stream.
"""

import json
import re
from functools import lru_cache
from typing import Final

MARK: Final = b'"model"'
_VALUE: Final = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
_Span = tuple[int, int]


class ModelName:
    """One model name, ready to be put into answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._quoted = json.dumps(name).encode()
        self._spellings = {self._quoted, json.dumps(name, ensure_ascii=False).encode("utf-8", "replace")}

    def put_into(self, payload: bytes) -> bytes:
        """Return a JSON object with its ``model`` renamed; the same bytes when there is nothing to rename.

        What is no JSON object, or has no string there, comes back untouched.
        """
        spans = _string_fields(payload)
        if all(payload[start:end] in self._spellings for start, end in spans):
            return payload
        if len(spans) == 1 and _outermost(payload, *spans[0]):
            return self._spliced(payload, *spans[0])
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            return payload
        if (
            not isinstance(value, dict)
            or not isinstance(value.get("model"), str)
            or value["model"] == self.name
        ):
            return payload
        if len(spans) == 1:
            return self._spliced(payload, *spans[0])
        # A nested object has a "model" too: write the whole anew. ASCII only, since half of a surrogate pair in an
        # escape is legal JSON but no legal UTF-8.
        return json.dumps(value | {"model": self.name}, separators=(",", ":")).encode()

    def _spliced(self, payload: bytes, start: int, end: int) -> bytes:
        return payload[:start] + self._quoted + payload[end:]


@lru_cache(maxsize=1024)
def model_name(name: str) -> ModelName:
    """Return ``name`` ready to be put into answers; the same few are asked for again and again."""
    return ModelName(name)


def _string_fields(payload: bytes) -> list[_Span]:
    """Return where the string values of at most two fields named ``model`` stand, quotes included, at any depth."""
    spans: list[_Span] = []
    at = payload.find(MARK)
    while at >= 0 and len(spans) < 2:
        # Only inside a string can a quote have a backslash before it.
        match = _VALUE.match(payload, at + len(MARK)) if payload[at - 1 : at] != b"\\" else None
        if match is not None:
            spans.append(match.span(1))
        at = payload.find(MARK, match.end() if match is not None else at + len(MARK))
    return spans


def _outermost(payload: bytes, start: int, end: int) -> bool:
    """Tell by brackets alone whether a value surely belongs to the outermost object; False means unknown."""
    if payload[:1] != b"{" or payload[-1:] != b"}":
        return False
    before, after = payload[1:start], payload[end:-1]
    return not any(mark in before for mark in (b"{", b"[")) or not any(mark in after for mark in (b"}", b"]"))
