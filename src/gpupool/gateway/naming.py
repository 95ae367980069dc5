"""Puts the model's name, as the client said it, into what an upstream answers.

An upstream may know its model under another name (a file path, for one). Only the top-level ``model`` of an object is
changed, every other byte is kept, and nothing is parsed unless a cheap look says there is something to change.
"""

import json
import re
from itertools import islice
from typing import Final

MARK: Final = b'"model"'
# A key can only be preceded by a backslash inside a string, where its quote is escaped.
_FIELD: Final = re.compile(rb'(?<!\\)"model"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)


class ModelName:
    """One model name, ready to be put into answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._quoted = json.dumps(name).encode()
        self._plain = json.dumps(name, ensure_ascii=False).encode("utf-8", "replace")

    def put_into(self, payload: bytes) -> bytes:
        """Return a JSON object with its ``model`` renamed; the same bytes when there is nothing to rename.

        What is no JSON object, or has no string there, comes back untouched.
        """
        if MARK not in payload:
            return payload
        fields = list(islice(_FIELD.finditer(payload), 2))
        if all(field[1] in {self._quoted, self._plain} for field in fields):
            return payload
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
        if len(fields) == 1:
            start, end = fields[0].span(1)
            return payload[:start] + self._quoted + payload[end:]
        # A nested object has a "model" too: write the whole anew. ASCII only, since half of a surrogate pair in an
        # escape is legal JSON but no legal UTF-8.
        return json.dumps(value | {"model": self.name}, separators=(",", ":")).encode()
