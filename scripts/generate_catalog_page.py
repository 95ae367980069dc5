"""Write the reference page of the GPU catalog from the catalog itself, so that the two can't differ.

Run `python scripts/generate_catalog_page.py` after a change of the catalog; a test compares the page with it.
"""

from pathlib import Path

from gpupool.catalog import Catalog
from gpupool.catalog.columns import COLUMNS, show

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "gpu-catalog.md"


def page() -> str:
    """Return the page as Markdown."""
    catalog = Catalog.load()
    limits = catalog.limits
    titles = [column.title for column in COLUMNS]
    rows = [[_cell(show(column.value(model)), column.key) for column in COLUMNS] for model in catalog]
    refused = ", ".join(f"`{model.short_ref}`" for model in catalog if not model.enabled)
    return "\n".join(
        [
            "# GPU catalog",
            "",
            f"The {len(catalog)} GPU models a validator supports, in the order in which a card's name is compared:",
            "the first pattern that is found in the driver's device name wins. A dash is a value that nobody",
            f"published. Listed, but not taken: {refused}. Source: {catalog.source}.",
            "",
            "`gpupool gpu catalog` shows the same table, with filters, sorting and `--json`; `gpupool gpu list`",
            "shows which rows this machine's cards match, and the rule that a card fails.",
            "",
            "<!-- Made by scripts/generate_catalog_page.py; edits here are lost. -->",
            "",
            _line(titles),
            _line(["---"] * len(titles)),
            *(_line(row) for row in rows),
            "",
            "## What a card must measure",
            "",
            "| rule | accepted |",
            "| --- | --- |",
            "| name | the first row whose pattern is found is the model that the card is registered as |",
            (
                f"| memory | bytes / 10^9, cut to whole GB: from GB - {limits.memory_below_gb} to"
                f" GB x {limits.memory_factor:.4f} + {limits.memory_above_gb} |"
            ),
            "| SMs | equal |",
            f"| core clock | from base to boost x {limits.boost_factor} (the rated clock, as OpenCL reports it) |",
            f"| device index | below {limits.device_index_below} |",
            f"| cards in a server | at most {limits.max_gpus_per_server} |",
            f"| verification port | {limits.lowest_port} to {limits.highest_port} |",
            "",
            "A card that fails a rule, or is in no row, still does private chutes and recompute.",
            "",
            *_timing(catalog),
            "",
        ]
    )


def _timing(catalog: Catalog) -> list[str]:
    factors = catalog.models[0].timing.factors
    return [
        "## Timing of the GPU proof",
        "",
        (
            f"With E the model's estimate: a node's proof must take more than {factors.prove_above} E and less than"
            f" {factors.prove_below} E,"
        ),
        (
            f"and the validator hangs up after {factors.prove_timeout} E. At a chute's launch the limit is"
            f" {factors.launch_below} E, without a lower bound."
        ),
    ]


def _cell(text: str, key: str) -> str:
    """Return a cell's text; patterns as code, with the column separator escaped."""
    return f"`{text}`".replace("|", "\\|") if key in {"short_ref", "pattern"} else text


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page())
