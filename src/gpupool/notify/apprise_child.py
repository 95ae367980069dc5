"""``python -m gpupool.notify.apprise_child``: send one message through Apprise, and end.

A process of its own for each message: Apprise takes a second and 48 MiB to load, which a process that runs for months
should not keep; and a service that hangs is ended with it, where a thread could not be. What to send, and the address
with its secrets, come on standard input. Exit status 0: taken; 1: not, with the reason on standard error.
"""

import json
import logging
import re
import sys
from typing import Any
from urllib.parse import unquote

_SHORTEST_SECRET = 4


class _Said(logging.Handler):
    """Keeps what Apprise logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def main() -> int:
    """Send what standard input says and return the exit status."""
    wanted: dict[str, Any] = json.load(sys.stdin)
    import apprise

    said = _Said()
    logger = logging.getLogger("apprise")
    logger.addHandler(said)
    logger.propagate = False
    sender = apprise.Apprise()
    if not sender.add(wanted["url"]):
        sys.stderr.write("Apprise does not understand its address")
        return 1
    if sender.notify(title=wanted["title"], body=wanted["text"], notify_type=wanted["tone"]):
        return 0
    sys.stderr.write(without_secrets("; ".join(said.lines) or "Apprise does not say why", wanted["url"]))
    return 1


def without_secrets(text: str, url: str) -> str:
    """Return ``text`` without any part of ``url`` beyond its scheme: which part is the secret, each service decides."""
    _, _, rest = url.partition("://")
    parts = re.split(r"[/?&=@:#]+", rest)
    for part in sorted({*parts, *map(unquote, parts)}, key=len, reverse=True):
        if len(part) >= _SHORTEST_SECRET:
            text = text.replace(part, "***")
    return text


if __name__ == "__main__":
    sys.exit(main())
