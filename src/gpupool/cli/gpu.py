"""``gpupool gpu``: the devices of this machine, and the catalog they are judged by.

Both commands here work without a running pool; `cli.pool_devices` asks it. Everything heavy is imported when a command
runs, so that the help of the whole program stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpupool.cli.pool_devices import list_pool_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.table import Table

    from gpupool.catalog.columns import Column, Filter
    from gpupool.catalog.models import GpuModel
    from gpupool.devices.inventory import InventoryEntry
    from gpupool.devices.probe import DeviceFacts

app = typer.Typer(
    help="Show this machine's GPUs, those of the pool, and the catalog of supported models.",
    no_args_is_help=True,
)
app.command("pool")(list_pool_devices)


_WIDEST = 10_000
_MEASURE = "The `node` extra of gpupool measures it through OpenCL"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts; unknown values are null.")]


@app.command("list")
def list_devices(as_json: AsJson = False) -> None:
    """Show this machine's devices: what each may do, and the rule that a card fails.

    A card outside the catalog still takes private chutes and recompute. A machine without a GPU is fine. For the cards
    of all machines see `gpupool gpu pool`.

    Examples:

      gpupool gpu list

      gpupool gpu list --json
    """
    from gpupool.devices import discover

    entries = discover()
    if as_json:
        _print_json([_entry_json(entry) for entry in entries])
        return
    console = _console()
    _print_table(console, _device_table(entries))
    for line in _device_notes(entries):
        console.print(line, markup=False, highlight=False)


@app.command("catalog")
def show_catalog(
    group: Annotated[str | None, typer.Option(help="Only groups with this text, such as RTX.")] = None,
    min_memory: Annotated[
        int | None, typer.Option(min=0, help="Only models with this many GB or more.")
    ] = None,
    max_price: Annotated[float | None, typer.Option(min=0, help="Only models up to this many USD/h.")] = None,
    arch: Annotated[
        str | None, typer.Option(help="Only architectures with this text, such as Ampere.")
    ] = None,
    vendor: Annotated[str | None, typer.Option(help="Only this vendor: nvidia or amd.")] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort by a column, named as in the header or in --json; unknown values last.",
        ),
    ] = None,
    desc: Annotated[bool, typer.Option("--desc", help="With --sort: the largest first.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Show every column.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the supported GPU models with their prices. A dash is a value that nobody published.

    Examples:

      gpupool gpu catalog --min-memory 48 --sort hourly_usd

      gpupool gpu catalog --group RTX --wide

      gpupool gpu catalog --arch hopper --json
    """
    from gpupool.catalog import Catalog
    from gpupool.catalog.columns import COLUMNS, Filter, sort_models

    column = _sort_column(sort, desc=desc)
    wanted = Filter(group, min_memory, max_price, arch, vendor)
    models: Sequence[GpuModel] = [model for model in Catalog.load() if wanted.accepts(model)]
    if column is not None:
        models = sort_models(models, column, descending=desc)
    if as_json:
        _print_json([_model_json(model) for model in models])
        return
    console = _console()
    if not models:
        console.print("No model of the catalog fits. Loosen a filter; without any, all models are shown.")
        for hint in _unknown_words(wanted, list(Catalog.load())):
            console.print(hint, highlight=False, markup=False)
        return
    _print_table(console, _catalog_table(models, [c for c in COLUMNS if wide or c.essential]), widen=wide)
    refused = [model.short_ref for model in models if not model.enabled]
    if refused:
        console.print(f"Listed, but not taken by the validator: {', '.join(refused)}.", highlight=False)


def _unknown_words(wanted: Filter, models: Sequence[GpuModel]) -> Iterable[str]:
    """Yield, for each text that fits no model at all, the nearest words that do, or all there are."""
    from difflib import get_close_matches

    for option, text, shown in (
        ("--group", wanted.group, [model.group for model in models]),
        ("--arch", wanted.architecture, [model.architecture for model in models]),
        ("--vendor", wanted.vendor, [model.vendor for model in models]),
    ):
        known = {word.casefold(): word for word in shown if word is not None}
        if text is None or any(text.casefold() in word for word in known):
            continue
        near = get_close_matches(text.casefold()[:80], known, n=3)
        words = ", ".join(known[word] for word in near or sorted(known))
        yield f"{option} {text!r:.80} fits none; {'the nearest' if near else 'there'} are {words}."


def _sort_column(key: str | None, *, desc: bool) -> Column | None:
    from gpupool.catalog.columns import COLUMNS

    if key is None:
        if desc:
            raise typer.BadParameter("--desc needs --sort COLUMN.")
        return None
    for column in COLUMNS:
        if key.casefold() in {column.key, column.title.casefold()}:
            return column
    known = ", ".join(column.key for column in COLUMNS)
    raise typer.BadParameter(f"--sort knows no column {key!r:.80}; the columns are {known}.")


def _catalog_table(models: Iterable[GpuModel], columns: Sequence[Column]) -> Table:
    from rich.text import Text

    from gpupool.catalog.columns import show

    rows = [[column.value(model) for column in columns] for model in models]
    table = _empty_table()
    for position, column in enumerate(columns):
        numeric = all(isinstance(row[position], int | float | None) for row in rows)
        table.add_column(column.title, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(show(value)) for value in row))
    return table


def _device_table(entries: Iterable[InventoryEntry]) -> Table:
    from rich.text import Text

    from gpupool.catalog.columns import show

    table = _empty_table()
    table.add_column("device", overflow="fold", ratio=1)
    table.add_column("catalog", no_wrap=True)
    for title in ("USD/h", "GB", "SMs", "market", "private", "recompute"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in entries:
        facts = entry.facts
        numbers = (
            entry.short_ref,
            entry.hourly_usd,
            f"{facts.memory_bytes / 1e9:.0f}",
            None if facts.is_cpu else facts.processors,
        )
        uses = (entry.may("market chutes"), entry.may("private chutes"), entry.may("recompute"))
        table.add_row(Text(_device_name(facts)), *(Text(show(value)) for value in (*numbers, *uses)))
    return table


def _device_name(facts: DeviceFacts) -> str:
    return f"CPU: {facts.name}, {facts.processors} cores" if facts.is_cpu else facts.name


def _device_notes(entries: Iterable[InventoryEntry]) -> Iterable[str]:
    """Yield what the table can't say: why a use is refused, what is undecided, and that no GPU was found."""
    entries = list(entries)
    for entry in entries:
        if entry.facts.is_cpu:
            continue
        by_reason: dict[str, list[str]] = {}
        for permission in entry.permissions:
            if not permission.allowed:
                by_reason.setdefault(permission.reason, []).append(permission.use)
        for reason, uses in by_reason.items():
            yield f"{entry.facts.name}: no {' or '.join(uses)}: {reason}."
        if not entry.failed:
            for result in entry.undecided:
                yield f"{entry.facts.name}: {result.rule} is undecided: {result.text}. {_MEASURE}: {_node_extra()}."
    if all(entry.facts.is_cpu for entry in entries):
        yield (
            "No accelerator was found: no NVIDIA driver answers and no OpenCL platform shows a GPU. That is fine: "
            "the CPU takes private chutes with gpu_count 0 and recompute. For a GPU, install its driver; AMD and "
            f"Intel cards also need the `node` extra of gpupool: {_node_extra()}."
        )


def _node_extra() -> str:
    """Return what to type to install what reads cards through OpenCL."""
    from gpupool.cli.checks.packages import checkout

    root = checkout()
    return "`pip install 'gpupool[node]'`" if root is None else f"run {root / 'scripts' / 'install'}"


def _entry_json(entry: InventoryEntry) -> dict[str, Any]:
    from dataclasses import asdict

    from gpupool.catalog import architecture_of

    facts = asdict(entry.facts)
    capability = entry.facts.compute_capability
    facts["compute_capability"] = None if capability is None else ".".join(map(str, capability))
    return {
        **facts,
        "stand_in": entry.facts.stand_in,
        "architecture": architecture_of(entry.facts.vendor, capability),
        "recognised_as": entry.recognised.short_ref if entry.recognised else None,
        "short_ref": entry.short_ref,
        "hourly_usd": entry.hourly_usd,
        "rules": [asdict(result) for result in entry.results],
        "may": [asdict(permission) for permission in entry.permissions],
    }


def _model_json(model: GpuModel) -> dict[str, Any]:
    from gpupool.catalog.columns import COLUMNS

    capability = model.compute_capability
    return {
        **{column.key: column.value(model) for column in COLUMNS},
        "compute_capability": None if capability is None else ".".join(map(str, capability)),
        "enabled": model.enabled,
    }


def _console(width: int | None = None) -> Console:
    from rich.console import Console

    return Console(width=width)


def _empty_table() -> Table:
    from rich.table import Table

    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")


def _print_table(console: Console, table: Table, *, widen: bool = False) -> None:
    """Print a table; ``widen`` lets it run over the terminal's edge rather than cut values short."""
    from rich.measure import Measurement

    if widen:
        needed = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
        console = _console(width=max(console.width, needed))
    console.print(table)


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
