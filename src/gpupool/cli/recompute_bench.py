"""``gpupool recompute selftest`` and ``bench``: is every device of this machine right, and how much can it farm."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.cli import recompute_flags as flags
from gpupool.cli.output import JsonFlag, print_plain_json
from gpupool.cli.recompute_bench_report import print_report, report
from gpupool.cli.recompute_client_options import keep_kernels
from gpupool.cli.shared_options import takes_groups
from gpupool.core.errors import EnvironmentProblemError
from gpupool.recompute.bench import levels as level_lists

if TYPE_CHECKING:
    from gpupool.recompute.bench.measuring import Failure, Measured
    from gpupool.recompute.bench.selftest import Verdict
    from gpupool.recompute.server.staffing import WorkerPlan

_WRONG: Final = 5
LevelList = Annotated[str, typer.Option(metavar="LEVELS", help="Levels, as 1-5 or 1,3,7.")]


@takes_groups
def selftest(
    *,
    levels: LevelList = "1,3",
    devices: flags.DeviceOptions,
    as_json: JsonFlag = False,
) -> None:
    """Have every device of this machine recover a known mainnet proof, and say which one is wrong.

    Each device works in a process of its own, so that one whose driver crashes or hangs is named and the others are
    tested all the same. Exit code 0 when all are well, 5 when one is not, 130 after Ctrl-C.

    Examples:

      gpupool recompute selftest

      gpupool recompute selftest --levels 1-7 -O 0
    """
    import asyncio

    from gpupool.recompute.bench.selftest import driver_verdict, try_devices

    wanted = level_lists.parse_levels(levels)
    verdicts: list[Verdict] = []

    def told(verdict: "Verdict") -> None:
        verdicts.append(verdict)
        if not as_json:
            words = "right" if verdict.well else f"WRONG: {verdict.why}"
            typer.echo(f"{verdict.label}: {words} ({verdict.seconds:.1f} s)")

    interrupted = False
    try:
        staff = _staff(devices)
        for maker, why in staff.faults.items():
            told(driver_verdict(maker, why))
        asyncio.run(try_devices(staff.plans, wanted, told))
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print_plain_json([asdict(verdict) for verdict in verdicts])
    if interrupted:
        raise typer.Exit(130)
    if not all(verdict.well for verdict in verdicts):
        raise typer.Exit(_WRONG)


@takes_groups
def bench(
    *,
    levels: LevelList = level_lists.ALL,
    seconds: Annotated[
        float, typer.Option(min=0.05, max=600, help="Seconds for each figure; at least three answers count.")
    ] = 3.0,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the largest farm: FILE.svg, or FILE.png with the chart extra."
        ),
    ] = None,
    devices: flags.DeviceOptions,
    as_json: JsonFlag = False,
) -> None:
    """Measure every device at every level, and reckon how large a farm this machine can serve.

    Nothing else should run meanwhile. Ctrl-C ends it early and shows what was measured so far (exit code 130). A level
    that a device fails at is named, and all others are measured (exit code 5).

    Examples:

      gpupool recompute bench

      gpupool recompute bench --levels 5,7 --seconds 10 --chart farm.svg

      gpupool recompute bench --json -r 1 -G 0 -O 0
    """
    from gpupool.recompute.bench.pictures import check_file

    wanted = level_lists.parse_levels(levels)
    if chart is not None:
        check_file(chart)
    found = _Findings()
    interrupted = False
    try:
        _measure(_staff(devices).plans, wanted, seconds, found)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print_plain_json(report(found.measured, found.failures))
    else:
        print_report(found.measured, found.failures)
    if chart is not None:
        _draw(chart, found.measured)
    if interrupted:
        raise typer.Exit(130)
    if found.failures:
        raise typer.Exit(_WRONG)


@dataclass(slots=True)
class _Findings:
    """What came of all devices so far."""

    measured: "list[Measured]" = field(default_factory=list)
    failures: "list[Failure]" = field(default_factory=list)


def _draw(chart: Path, measured: "Sequence[Measured]") -> None:
    from gpupool.recompute.bench.chart import lay_out
    from gpupool.recompute.bench.farm_size import farms
    from gpupool.recompute.bench.pictures import write

    sizes = {one.level: one.largest_tib for one in farms((one.level, one.rate) for one in measured)}
    if sizes:
        write(chart, lay_out("Largest farm of this machine, compressed", sizes))
    else:
        typer.echo(f"{chart} was not drawn: nothing was measured.", err=True)


def _staff(devices: flags.DeviceOptions) -> flags.Staff:
    from importlib.util import find_spec

    if find_spec("numba") is None:
        raise EnvironmentProblemError(
            "Recompute needs numba, which is not installed.",
            remedy="Install it: pip install 'gpupool[recompute]'.",
        )
    keep_kernels()
    staff = devices.staff()
    for line in staff.notices:
        typer.echo(line, err=True)
    return staff


def _measure(plans: "Sequence[WorkerPlan]", levels: Sequence[int], seconds: float, found: _Findings) -> None:
    import asyncio
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from gpupool.recompute.bench.measuring import Measured, measure

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("measuring", total=len(plans) * len(levels))

        async def go() -> None:
            for number, plan in enumerate(plans):
                progress.update(task, description=plan.label, completed=number * len(levels))
                async for one in measure(plan, levels, seconds):
                    if isinstance(one, Measured):
                        found.measured.append(one)
                        progress.advance(task)
                    else:
                        found.failures.append(one)
                        progress.advance(task, len(one.levels))

        asyncio.run(go())
