"""What ``gpupool recompute bench`` has found, for people and for scripts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from gpupool.cli.output import print_table

if TYPE_CHECKING:
    from gpupool.recompute.bench.farm_size import Farm
    from gpupool.recompute.bench.measuring import Failure, Measured

_COLUMNS: Final = (
    *("DEVICE", "ENGINE", "AT ONCE", "LEVEL"),
    *("QUALITY", "P99", "A SECOND"),
    *("PROOF", "P99", "A SECOND"),
    "MIB",
)
_NOTHING: Final = "nothing was measured"


def report(measured: "Sequence[Measured]", failures: "Sequence[Failure]") -> dict[str, Any]:
    """Return all of it as JSON can say it."""
    from gpupool.recompute.bench.farm_size import PROOF_SHARE

    return {
        "measured": [asdict(one) for one in measured],
        "farm": [asdict(one) for one in _farms(measured)],
        "failed": [asdict(one) for one in failures],
        "proof_share": PROOF_SHARE,
    }


def print_report(measured: "Sequence[Measured]", failures: "Sequence[Failure]") -> None:
    """Print tables; what failed goes to standard error."""
    from gpupool.recompute.server.staffing import device_label

    print_table("Devices", _COLUMNS, [_row(one) for one in measured], _NOTHING)
    _print_farms(_farms(measured))
    for one in failures:
        levels = ", ".join(f"C{level}" for level in one.levels)
        typer.echo(
            f"{device_label(one.device, one.engine, one.index)} failed at {levels}: {one.why}", err=True
        )
        typer.echo(f"  What to do: {one.remedy}", err=True)


def _farms(measured: "Sequence[Measured]") -> "list[Farm]":
    from gpupool.recompute.bench.farm_size import farms

    return farms((one.level, one.rate) for one in measured)


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
        _NOTHING,
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
    engine = one.engine if one.index is None else f"{one.engine} {one.index}"
    return (one.device, engine, one.threads, f"C{one.level}", *speeds, one.peak_mib)
