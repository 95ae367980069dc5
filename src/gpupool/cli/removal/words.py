"""What ``uninstall`` says at its end: what is gone, what stays, and how to remove the rest."""

import shlex
from pathlib import Path

from gpupool.cli.checks.packages import checkout
from gpupool.cli.invocation import shown_path
from gpupool.cli.removal.folder import Removed
from gpupool.core.home import Home


def farewell(home: Home, removed: Removed, root: Path | None = None) -> list[str]:
    """Return the lines; ``root`` stands in for the checkout in tests."""
    state = shown_path(home.root)
    lines = [f"removed {state}"] if removed.gone else [f"removed the pool's files in {state}"]
    if removed.stayed:
        lines.append(f"still in it: {', '.join(removed.stayed)}")
    lines += [f"removed a link; what it points to stays: {link}" for link in removed.links]
    root = root or checkout()
    environment = root / ".venv" if root is not None else None
    if root is not None and environment is not None and environment.is_dir():
        typed = shlex.quote(shown_path(environment))
        lines.append(f"the program itself stays; remove it with `rm -rf {typed}`, or the whole folder {root}")
    else:
        lines.append(
            "the program itself stays; remove it with the tool that installed it (such as `pip uninstall gpupool`)"
        )
    return lines
