"""``gpupool support-bundle``: one file for whoever helps, with the secrets removed."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer


def support_bundle(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write; left out, one with the time in its name here."
        ),
    ] = None,
) -> None:
    """Pack what helps to find a fault: findings, versions, settings, the pool's state, events, logs, records.

    Tokens and keys, and the values of workloads' variables, are removed wherever they stand. Logs hold what your
    workloads printed, so look into the file before you send it. Works with the pool up, down or broken.

    Examples: `gpupool support-bundle` · `gpupool support-bundle --output /tmp/bundle.tar.gz`
    """
    import os
    from datetime import UTC, datetime

    from gpupool.cli.bundle.archive import gather, pack
    from gpupool.core.home import Home

    now = datetime.now(UTC)
    path = output or Path(f"gpupool-support-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    bundle = gather(Home.from_environment(), os.environ)
    size = pack(bundle, path, now)
    typer.echo(
        f"{path}: {len(bundle.files)} files, {size} bytes; secrets removed. Look into it before you send it."
    )
    typer.echo(f"  holds {summary(bundle.files)}")
    for name in bundle.left_out:
        typer.echo(f"  left out: {name}")


def summary(names: Collection[str]) -> str:
    """Return files by name, and of folders how many they hold: ``findings.json, logs (4)``."""
    folders = Counter(name.partition("/")[0] if "/" in name else name for name in sorted(names))
    loose = {name for name in names if "/" not in name}
    return ", ".join(name if name in loose else f"{name} ({count})" for name, count in folders.items())
