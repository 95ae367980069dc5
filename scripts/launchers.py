"""Make the checkout usable from its own environment: one `.pth` file and one launcher per command.

A build of the package would need a build back end, an unhashed download on a bare machine. The commands are those
of `[project.scripts]` in `pyproject.toml`, so an installed wheel and a checkout offer the same ones.

Run by `scripts/environment.sh` with the environment's own Python: `python -I scripts/launchers.py CHECKOUT`.
"""

import sys
import sysconfig
import tomllib
from pathlib import Path

LAUNCHER = """\
#!/bin/sh
# Made by scripts/launchers.py: runs the checkout's code in the checkout's environment, with its state beside it.
bin=$(dirname -- "$(readlink -f -- "$0")")
checkout=$(CDPATH='' cd -- "$bin/../.." && pwd -P)
export GPUPOOL_HOME="${{GPUPOOL_HOME:-$checkout/.gpupool}}"
exec "$bin/python" -P -c '
import sys
from {module} import {function}
sys.argv[0] = "{name}"
sys.exit({function}())' "$@"
"""


def write_path_file(checkout: Path, site_packages: Path) -> None:
    """Put the checkout's `src` on the import path, relative so that odd characters in a path do not matter."""
    (site_packages / "gpupool.pth").write_text("../../../../src\n")
    found = (site_packages / "../../../../src").resolve()
    if found != (checkout / "src").resolve():
        sys.exit(f"{site_packages} is not the environment of {checkout}")


def write_launchers(checkout: Path, bin_folder: Path) -> None:
    """Write a launcher for every command of the product."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, target in project["scripts"].items():
        module, function = target.split(":")
        launcher = bin_folder / name
        launcher.write_text(LAUNCHER.format(name=name, module=module, function=function))
        launcher.chmod(0o755)


def main() -> None:
    """Write both into the environment of the Python that runs this."""
    checkout = Path(sys.argv[1])
    write_path_file(checkout, Path(sysconfig.get_path("purelib")))
    write_launchers(checkout, Path(sysconfig.get_path("scripts")))


if __name__ == "__main__":
    main()
