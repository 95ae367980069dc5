"""What ``uninstall`` says at its end: what is gone, what stays, and how to remove the rest."""

from gpupool.cli.checks.packages import checkout
from gpupool.cli.removal.folder import Removed
from gpupool.core.home import Home


def farewell(home: Home, removed: Removed) -> list[str]:
    """Return the lines."""
    lines = [f"removed {home.root}"] if removed.gone else [f"removed the pool's files in {home.root}"]
    if removed.stayed:
        lines.append(f"still in it: {', '.join(removed.stayed)}")
    lines += [f"removed a link; what it points to stays: {link}" for link in removed.links]
    root = checkout()
    environment = root / ".venv" if root is not None else None
    if environment is not None and environment.is_dir():
        lines.append(
            f"the program itself stays; remove it with `rm -rf {environment}`, or the whole folder {root}"
        )
    else:
        lines.append(
            "the program itself stays; remove it with the tool that installed it (such as `pip uninstall gpupool`)"
        )
    return lines
