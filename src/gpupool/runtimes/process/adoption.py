"""Taking stock at the start of an agent: what an earlier one left behind, and what has become of it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import structlog

from gpupool.core.files import remove_unfinished
from gpupool.core.processes import boot_id
from gpupool.runtimes.process.cleanup import end_all
from gpupool.runtimes.process.confinement import own_users
from gpupool.runtimes.process.output import last_words
from gpupool.runtimes.process.reasons import with_last_words
from gpupool.runtimes.process.records import Phase, RunFolder, RunRecord, all_runs

_log = structlog.get_logger(__name__)
_GRACE_SECONDS: Final = 2.0


def take_stock(runs: Path) -> list[tuple[RunFolder, RunRecord, bool]]:
    """Return every run with its record brought up to date, and whether it is alive and to be watched.

    Ends what belongs to a dead run and every marked process that no live run accounts for. Blocks while it does.
    """
    for path in runs.iterdir():
        remove_unfinished(RunFolder(path).record_path)
    found = [(folder, record, _alive(record)) for folder, record in all_runs(runs)]
    kept = {record.order.placement_id for _, record, alive in found if alive}
    leaders = [record.process for _, record, alive in found if record.process and not alive]
    dead = own_users(record.uid for _, record, alive in found if not alive)
    ended = end_all(runs, leaders, kept, _GRACE_SECONDS, dead - own_users(_kept_users(found)))
    if ended:
        _log.warning("ended strays", pids=[process.pid for process in ended])
    return [(folder, record if alive else _closed(folder, record), alive) for folder, record, alive in found]


def _kept_users(found: Iterable[tuple[RunFolder, RunRecord, bool]]) -> Iterator[int | None]:
    return (record.uid for _, record, alive in found if alive)


def _alive(record: RunRecord) -> bool:
    return record.phase is Phase.RUNNING and record.process is not None and record.process.alive()


def _closed(folder: RunFolder, record: RunRecord) -> RunRecord:
    """Return the record of a run that is over, and keep it."""
    if record.phase is not Phase.EXITED:
        record = record.exited(_fate(folder, record))
        folder.write(record)
    return record


def _fate(folder: RunFolder, record: RunRecord) -> str:
    if record.process is None:
        return "lost: the agent ended while it launched this"
    if record.process.boot_id != boot_id():
        return "lost: machine restarted"
    return with_last_words("exit: code unknown, while no agent ran", last_words(folder.output))
