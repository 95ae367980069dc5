"""Compile the proxy's hot modules with mypyc, into the environment that runs this or into a folder.

    .venv/bin/python scripts/compile_proxy.py [--to FOLDER]

Does nothing where the compiled form of these very sources lies there already. Needs a C compiler and mypy.
"""

import argparse
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from gpupool.core.compiled import DIGEST, digest_of, folders, modules_of, source_of
from gpupool.recompute.proxy.compiled import GROUP, MODULES, PACKAGES

SOURCES = Path(__file__).resolve().parent.parent / "src"


def compile_into(folder: Path) -> bool:
    """Make ``folder`` hold the compiled modules; False where it holds them already."""
    wanted = digest_of(modules_of(PACKAGES))
    if (folder / DIGEST).is_file() and (folder / DIGEST).read_text().strip() == wanted:
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        built = Path(scratch) / "built"
        _build(built, Path(scratch) / "work")
        (built / DIGEST).write_text(wanted + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)
    return True


def _build(built: Path, work: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import setup  # type: ignore[import-untyped]

    os.chdir(SOURCES)
    paths = [str(source_of(module).relative_to(SOURCES)) for module in MODULES]
    options = ["--strict", "--no-warn-unused-ignores", f"--cache-dir={work / 'cache'}"]
    extensions = mypycify(
        [*options, *paths], group_name=GROUP, target_dir=str(work / "c"), opt_level="3", debug_level="0"
    )
    setup(
        name=GROUP,
        ext_modules=extensions,
        script_args=["--quiet", "build_ext", f"--build-lib={built}", f"--build-temp={work / 'o'}"],
    )


def main() -> int:
    """Compile, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, help="folder; left out, the one of this environment")
    folder = (parser.parse_args().to or folders()[-1]).absolute()
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        sys.stderr.write("No C compiler: apt install gcc libc6-dev, then run this again.\n")
        return 3
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        sys.stderr.write("No headers of this Python: apt install python3-dev, then run this again.\n")
        return 3
    sys.stderr.write(f"{'compiled into' if compile_into(folder) else 'current:'} {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
