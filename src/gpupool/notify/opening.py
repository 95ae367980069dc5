"""One adapter for each way to tell somebody, chosen by which way is given."""

from pathlib import Path

from gpupool.notify.hooked import to_command, to_url
from gpupool.notify.log import LogNotifier
from gpupool.notify.port import Notifier
from gpupool.notify.through_apprise import AppriseNotifier


def open_notifier(
    *, apprise: str | None = None, command: Path | None = None, url: str | None = None
) -> Notifier:
    """Return the adapter for the one way that is given, the log where none is.

    Raises InvalidInputError or EnvironmentProblemError where it cannot work.
    """
    if apprise is not None:
        return AppriseNotifier(apprise)
    if command is not None:
        return to_command(command)
    return LogNotifier() if url is None else to_url(url)
