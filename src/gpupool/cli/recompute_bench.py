"""``gpupool recompute selftest`` and ``bench``: is every device of this machine right, and how much can it farm."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.cli import recompute_flags as flags
from gpupool.cli.output import JsonFlag, print_plain_json, print_table
from gpupool.cli.recompute_client_options import keep_kernels
from gpupool.cli.shared_options import takes_groups
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError

if TYPE_CHECKING:
    from gpupool.recompute.bench.farm_size import Farm
    from gpupool.recompute.bench.measuring import Measured
    from gpupool.recompute.bench.selftest import Verdict
    from gpupool.recompute.server.staffing import WorkerPlan

_WRONG: Final = 5
_COLUMNS: Final = (
    *("DEVICE", "ENGINE", "AT ONCE", "LEVEL"),
    *("QUALITY", "P99", "A SECOND"),
    *("PROOF", "P99", "A SECOND"),
    "MIB",
)
_LEVELS: Final = re.compile(r"([1-7])(?:-([1-7]))?", re.ASCII)
LevelList = Annotated[str, typer.Option(metavar="LEVELS", help="Levels, as 1-5 or 1,3,7.")]


def parse_levels(text: str) -> list[int]:
    """Return the levels of ``1-5`` or ``1,3,7``, each once, in order; raises InvalidInputError."""
    found: set[int] = set()
    for part in text.split(","):
        wanted = _LEVELS.fullmatch(part.strip())
        if wanted is None or int(wanted[2] or wanted[1]) < int(wanted[1]):
            raise InvalidInputError(
                f"--levels {text[:40]!r} is no list of levels.",
                remedy="Write them as 1-5 or 1,3,7; there are 1 to 7.",
            )
        found.update(range(int(wanted[1]), int(wanted[2] or wanted[1]) + 1))
    return sorted(found)


@takes_groups
def selftest(
    *,
    levels: LevelList = "1,3",
    devices: flags.DeviceOptions,
    as_json: JsonFlag = False,
) -> None:
    """Have every device of this machine recover a known mainnet proof, and say which one is wrong.

    Each device works in a process of its own, so that one whose driver crashes or hangs is named and the others are
    tested all the same. Exit code 0 when all are well, 5 when one is not.

    Examples:

      gpupool recompute selftest

      gpupool recompute selftest --levels 1-7 -O 0
    """
    import asyncio

    from gpupool.recompute.bench.selftest import try_devices

    wanted = parse_levels(levels)
    plans = _plans(devices)

    def told(verdict: "Verdict") -> None:
        if not as_json:
            words = "right" if verdict.well else f"WRONG: {verdict.why}"
            typer.echo(f"{verdict.device} ({verdict.engine}): {words} ({verdict.seconds:.1f} s)")

    verdicts = asyncio.run(try_devices(plans, wanted, told))
    if as_json:
        print_plain_json([asdict(verdict) for verdict in verdicts])
    if not all(verdict.well for verdict in verdicts):
        raise typer.Exit(_WRONG)


@takes_groups
def bench(
    *,
    levels: LevelList = "1-7",
    seconds: Annotated[
        float, typer.Option(min=0.05, max=600, help="Seconds for each figure; at least three answers count.")
    ] = 3.0,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the largest farm as an SVG.")
    ] = None,
    devices: flags.DeviceOptions,
    as_json: JsonFlag = False,
) -> None:
    """Measure every device at every level, and reckon how large a farm this machine can serve.

    Nothing else should run meanwhile. Ctrl-C ends it early and shows what was measured so far (exit code 130). A device
    that fails is named, and the others are measured (exit code 5).

    Examples:

      gpupool recompute bench

      gpupool recompute bench --levels 5,7 --seconds 10 --chart farm.svg

      gpupool recompute bench --json -r 1 -G 0 -O 0
    """
    wanted = parse_levels(levels)
    if chart is not None and chart.suffix.lower() != ".svg":
        raise InvalidInputError(
            f"A chart is an SVG file; {chart.name} is named otherwise.", remedy="Name it FILE.svg."
        )
    plans = _plans(devices)
    measured: list[Measured] = []
    failed: dict[str, str] = {}
    interrupted = False
    try:
        _measure(plans, wanted, seconds, measured.append, failed)
    except KeyboardInterrupt:
        interrupted = True
    _show(measured, failed, chart, as_json=as_json)
    if interrupted:
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(_WRONG)


def _plans(devices: flags.DeviceOptions) -> "list[WorkerPlan]":
    from importlib.util import find_spec

    if find_spec("numba") is None:
        raise EnvironmentProblemError(
            "Recompute needs numba, which is not installed.",
            remedy="Install it: pip install 'gpupool[recompute]'.",
        )
    keep_kernels()
    plans, notices = devices.workers()
    for line in notices:
        typer.echo(line, err=True)
    return plans


def _measure(
    plans: "Sequence[WorkerPlan]",
    levels: Sequence[int],
    seconds: float,
    take: "Callable[[Measured], None]",
    failed: dict[str, str],
) -> None:
    import asyncio
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from gpupool.recompute.bench.device import DeviceFailedError
    from gpupool.recompute.bench.measuring import measure

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("measuring", total=len(plans) * len(levels))

        async def go() -> None:
            for number, plan in enumerate(plans):
                progress.update(task, description=plan.name, completed=number * len(levels))
                try:
                    async for one in measure(plan, levels, seconds):
                        take(one)
                        progress.advance(task)
                except DeviceFailedError as error:
                    failed[plan.name] = error.message

        asyncio.run(go())


def _show(
    measured: "Sequence[Measured]", failed: dict[str, str], chart: Path | None, *, as_json: bool
) -> None:
    from gpupool.recompute.bench.chart import draw
    from gpupool.recompute.bench.farm_size import PROOF_SHARE, farms

    found = farms((one.level, one.rate) for one in measured)
    if chart is not None and found:
        try:
            chart.write_text(
                draw(
                    "Largest farm of this machine, compressed", {one.level: one.largest_tib for one in found}
                )
            )
        except OSError as error:
            raise EnvironmentProblemError(
                f"The chart {chart} cannot be written: {error.strerror}."
            ) from error
    if as_json:
        print_plain_json(
            {
                "measured": [asdict(one) for one in measured],
                "farm": [asdict(one) for one in found],
                "failed": failed,
                "proof_share": PROOF_SHARE,
            }
        )
        return
    print_table("Devices", _COLUMNS, [_row(one) for one in measured], "nothing was measured")
    _print_farms(found)
    for device, why in failed.items():
        typer.echo(f"{device} failed: {why}", err=True)


def _print_farms(found: "Sequence[Farm]") -> None:
    from gpupool.recompute.bench.chart import told
    from gpupool.recompute.bench.farm_size import FILTERS, PLOT_GIB, PROOF_SHARE

    print_table(
        "Largest farm that the devices measured serve together, compressed size",
        ("LEVEL", "DEVICES", "PLOT GIB", "LOOK-UPS A SECOND", *(f"FILTER {each}" for each in FILTERS)),
        [
            (
                f"C{one.level}",
                one.devices,
                PLOT_GIB[one.level],
                f"{one.lookups_per_second:.1f}",
                *(told(one.largest_tib[each]) for each in FILTERS),
            )
            for one in found
        ],
        "nothing was measured",
    )
    typer.echo(
        f"plot GiB / 1024 x filter x 8 s x look-ups a second, with a full proof in {PROOF_SHARE:.0%} of look-ups and no"
        " reserve. The filter is 256 today and 128 from June 2027 on."
    )


def _row(one: "Measured") -> tuple[object, ...]:
    speeds = [
        cell
        for speed in (one.quality, one.proof)
        for cell in (f"{speed.p50_ms:.1f} ms", f"{speed.p99_ms:.1f} ms", f"{speed.per_second:.1f}")
    ]
    return (one.device, one.engine, one.threads, f"C{one.level}", *speeds, one.peak_mib)
