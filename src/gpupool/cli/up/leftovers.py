"""Ending whatever an earlier or a dying ``up`` left behind, from records and marks alone.

Our own processes carry the mark `MARK` in their environment; what the agent ran is named in its run records. So
everything is found even where its parent died between starting it and writing it down.
"""

from typing import Final

from gpupool.core.home import Home
from gpupool.core.processes import ProcessIdentity, end_all, marked
from gpupool.core.records import ProcessRecord

MARK: Final = "GPUPOOL_UP_HOME"
AGENT_GRACE_SECONDS: Final = 15.0
GRACE_SECONDS: Final = 5.0


def end_leftovers(home: Home) -> int:
    """End everything that runs from this state folder and return how many processes that were.

    The agent goes first, since it ends what it runs in good order; what it did not end is ended by its records.
    """
    from gpupool.runtimes.process.cleanup import end_recorded

    agent = ProcessRecord.read(home.run / "agent.json")
    ended = end_all([agent.process] if agent else [], AGENT_GRACE_SECONDS)
    ended += end_all(_of_ours(home), GRACE_SECONDS)
    ended += len(end_recorded(home.agent / "runs"))
    for role in ("agent", "gateway", "control"):
        (home.run / f"{role}.json").unlink(missing_ok=True)
    return ended


def _of_ours(home: Home) -> list[ProcessIdentity]:
    return marked(MARK, str(home.root))
