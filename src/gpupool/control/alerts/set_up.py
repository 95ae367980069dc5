"""From what ``alerts.yaml`` says to a desk's settings."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from gpupool.contracts.alert_file import AlertFile
from gpupool.control.alerts.desk import LOG_ONLY, Desk
from gpupool.control.alerts.rules import RULES, Disk
from gpupool.core.errors import InvalidInputError
from gpupool.fleet.alarms import Severity
from gpupool.notify.opening import open_notifier


def desk_of(file: AlertFile, data: Path) -> Desk:
    """Return the settings of a desk; ``data``: the folder whose disk is watched.

    Raises InvalidInputError or EnvironmentProblemError where a target or a rule cannot be.
    """
    unknown = sorted(file.holds.keys() - RULES.keys())
    if unknown:
        raise InvalidInputError(
            f"alerts.yaml: holds: there is no rule {', '.join(unknown)}.",
            remedy=f"The rules are: {', '.join(RULES)}.",
        )
    targets = [
        (target.name, open_notifier(**target.way()), Severity(target.least)) for target in file.targets
    ]
    return Desk(
        targets=targets or LOG_ONLY,
        group_seconds=file.group_seconds,
        distance_seconds=file.distance_seconds,
        repeat=timedelta(hours=file.repeat_hours),
        rises=file.holds,
        disk=_disk(data),
    )


def _disk(folder: Path) -> Callable[[], Disk | None]:
    def look() -> Disk | None:
        try:
            found = shutil.disk_usage(folder)
        except OSError:
            # Gone or out of reach: the database in it says so itself.
            return None
        return Disk(folder=str(folder), total=found.total, free=found.free)

    return look
