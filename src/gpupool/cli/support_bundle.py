"""``gpupool support-bundle``: one file for whoever helps, with the secrets removed."""

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
    for name, content in sorted(bundle.files.items()):
        typer.echo(f"  {len(content):>9}  {name}")
    for name in bundle.left_out:
        typer.echo(f"   left out  {name}")
    typer.echo(
        f"{path}: {len(bundle.files)} files, {size} bytes; secrets removed. Look into it before you send it."
    )
