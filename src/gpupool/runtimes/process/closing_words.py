"""What a program said last, short enough for a reason: whole lines, and of a structured log line what happened."""

import json
import re
from typing import Final

MOST_CHARACTERS: Final = 300
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CUT: Final = "..."
_ADVICE: Final = "What to do:"
_ADVICE_WITHIN: Final = 12
"""So many lines from the end an advice is looked for: threads of a library may write on after a fault was told."""


def closing_words(text: str, *, whole: bool = True) -> str:
    """Return the last line of ``text``, with the one before where both fit; empty when there is none.

    Where they do not fit, advice yields to the fault that it is about. An advice counts as the last line even if a few
    others follow.

    ``whole``: whether ``text`` begins at the start of a line. A line that is too long alone loses its end, since its
    start says what it is about.
    """
    lines = text.splitlines()
    if not whole and len(lines) > 1:
        lines = lines[1:]
    said = _last_two([words for line in lines if (words := _plain(line))])
    together = " | ".join(said)
    if len(together) <= MOST_CHARACTERS:
        return together
    # Advice without the fault that it is about would tell nothing.
    last = said[0] if said[-1].startswith(_ADVICE) else said[-1]
    return last if len(last) <= MOST_CHARACTERS else last[: MOST_CHARACTERS - len(_CUT)] + _CUT


def _last_two(lines: list[str]) -> list[str]:
    for end in range(len(lines), max(0, len(lines) - _ADVICE_WITHIN), -1):
        if lines[end - 1].startswith(_ADVICE):
            return lines[max(0, end - 2) : end]
    return lines[-2:]


def _plain(line: str) -> str:
    """Return a line without colours, or of a JSON log line its event and error only."""
    words = event_of(line)
    return "".join(
        character if character.isprintable() else " " for character in _COLOURS.sub("", words)
    ).strip()


def event_of(line: str) -> str:
    """Return event and error of a JSON log line; any other line as it is."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
        return line
    error = entry.get("error")
    return f"{entry['event']}: {error}" if error else str(entry["event"])
