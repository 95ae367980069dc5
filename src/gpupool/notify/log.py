"""Messages as log lines: for a pool whose owner has named nobody to tell."""

import structlog

from gpupool.notify.port import Note

_LOG = structlog.get_logger(__name__)


class LogNotifier:
    """Writes messages to this process's log."""

    name = "log"

    async def send(self, note: Note) -> None:
        """Write one line."""
        _LOG.warning("alert", title=note.title, text=note.text, tone=note.tone)
