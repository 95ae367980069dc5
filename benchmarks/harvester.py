"""What a stock harvester gains: Chia's own prover through our library, a sidecar and one server, beside what it has.

Both run in the same minute on the same machine, one look-up at a time, on minted plots of the same proofs; the server
computes with one thread, as the bundled library does. Times are wall milliseconds as the prover sees them, with its own
reading and sorting; the median of all plots and rounds. ``way`` is what a look-up takes where the server remembers
the answer: the library, the socket, the sidecar with its check of the answer, and the server's part in between.

Run: `.venv/bin/python benchmarks/harvester.py [--levels 1,2,3,4,5,6,7] [--rounds 2]
[--json]`. Fails where ours is slower.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".numba-cache"))

import mainnet  # noqa: E402 - the paths above come first
from shim_farm import Farm, Plot, farm, plots  # noqa: E402

PLOTS = 4
SLOW_LEVEL = 5
"""From here on the bundled library takes seconds a proof, so one plot and one round have to do."""
KINDS = ("quality", "proof")
SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Row:
    """One level and kind, in milliseconds."""

    level: int
    kind: str
    ours: float
    way: float
    bundled: float

    @property
    def ratio(self) -> float:
        """How many of ours fit into one of the bundled library's."""
        return self.bundled / self.ours


def timed(
    running: Farm, given: list[Plot], rounds: int, *, stock: bool = False
) -> dict[str, list[list[float]]]:
    """Return kind -> round -> times."""
    options = ("--rounds", str(rounds), "--threads", "1")
    with running.harvester(given, *options, stock=stock) as harvester:
        lines = harvester.ended(SECONDS)
        assert harvester.wrong() == [], harvester.wrong()
    times = {kind: [float(str(line["ms"])) for line in lines if line["kind"] == kind] for kind in KINDS}
    return {
        kind: [found[start : start + len(given)] for start in range(0, len(found), len(given))]
        for kind, found in times.items()
    }


def measured(running: Farm, level: int, rounds: int, folder: Path) -> list[Row]:
    """Return both rows of a level. The first round is computed, the others are remembered by the server."""
    # The proofs of this level are asked of the server here for the first time.
    few = 1 if level >= SLOW_LEVEL else PLOTS
    given = plots(
        folder, level, mainnet.K32[1 : 1 + few]
    )  # the first one is the demo's, which is always computed
    ours = timed(running, given, 1 + rounds)
    bundled = timed(running, given, 1 if level >= SLOW_LEVEL else rounds, stock=True)
    return [
        Row(
            level,
            kind,
            ours=median(ours[kind][0]),
            way=median(time for each in ours[kind][1:] for time in each),
            bundled=median(time for each in bundled[kind] for time in each),
        )
        for kind in KINDS
    ]


def shown(row: Row) -> str:
    """Return a line of the table."""
    times = f"{row.ours:>9.1f} {row.way:>8.1f} {row.bundled:>11.1f} {row.ratio:>6.1f}"
    return f"{row.level:>5} {row.kind:8} {times}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--levels", default="1,3", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, farm(Path(folder), servers=1) as running:
        if not given.json:
            print(
                f"{'level':>5} {'':8} {'ours ms':>9} {'way ms':>8} {'bundled ms':>11} {'ratio':>6}",
                flush=True,
            )
        # The worker's and the prover's first look-ups are no measure.
        timed(running, plots(Path(folder), 1, mainnet.K32[-2:]), 1)
        for level in (int(word) for word in given.levels.split(",")):
            found = measured(running, level, given.rounds, Path(folder))
            rows += found
            if not given.json:
                print(*map(shown, found), sep="\n", flush=True)
    if given.json:
        print(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows], indent=1))
    slower = [row for row in rows if row.ratio < 1]
    if slower:
        sys.exit(f"slower than the bundled library: {slower}")


if __name__ == "__main__":
    main()
