"""The reference page of the catalog is the one that its generator writes."""

import runpy
from pathlib import Path

from gpupool.catalog import Catalog


def test_the_reference_page_is_up_to_date(checkout: Path) -> None:
    generator = runpy.run_path(str(checkout / "scripts" / "generate_catalog_page.py"))
    page = generator["page"]()
    assert generator["PAGE"].read_text() == page, "run `python scripts/generate_catalog_page.py`"
    assert all(f"| `{model.short_ref}` | {model.display_name} |" in page for model in Catalog.load())
