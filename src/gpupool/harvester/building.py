"""The shim as a library file: the one that a wheel carries for this kind of machine, else one compiled from the sources.

`native/` holds the sources; a wheel has a copy of them beside this module, and may have a built library there (see
`native/wheel_hook.py`). What is compiled is named after sources and flags, so that an upgrade makes a new file beside
the one that a running harvester has open, and the same sources are never compiled twice.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, UnsupportedError
from gpupool.core.files import ensure_private_dir

FLAGS: Final = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"),
)
LINK_FLAGS: Final = ("-Wl,-z,relro,-z,now,-z,nodelete,-z,noexecstack", "-ldl", "-pthread")
"""`nodelete`: what runs after a fork must still be there."""
COMPILERS: Final = ("cc", "gcc", "clang")
_COMPILE_SECONDS: Final = 120.0


class NoCompilerError(EnvironmentProblemError):
    """There is no C compiler here, and this wheel carries no built library for this machine."""

    code = "no_compiler"
    default_remedy = "Install one (apt install gcc libc6-dev, or dnf install gcc) and run the command again."


class CompileError(EnvironmentProblemError):
    """The harvester's library cannot be compiled."""

    code = "compile_failed"
    default_remedy = (
        "Install the C library's headers (apt install libc6-dev), or report the compiler's message."
    )


def shim_library(folder: Path) -> Path:
    """Return the path of the library for this machine, compiled into ``folder`` where none is shipped.

    Raises UnsupportedError on anything but Linux with glibc, NoCompilerError, CompileError.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        raise UnsupportedError(
            f"The harvester's library works on Linux with glibc only, and this is {platform.platform()}.",
            remedy="Run Chia's harvester on such a machine; Windows and macOS are not supported yet.",
        )
    shipped = shipped_library()
    return shipped if shipped.is_file() and _loads(shipped) else _compiled(folder)


def shipped_library() -> Path:
    """Return where a wheel keeps the built library for this kind of processor; it need not be there."""
    return Path(__file__).with_name("native") / library_name()


def library_name() -> str:
    """Return what a wheel calls the library for this kind of processor."""
    return f"libgpupool_harvester-{platform.machine()}.so"


def sources() -> list[Path]:
    """Return the C files, from beside this module or, in a checkout, from its top."""
    here = Path(__file__).resolve()
    for folder in (here.with_name("native"), here.parents[3] / "native"):
        if found := sorted(folder.glob("*.c")):
            return found
    raise EnvironmentProblemError(
        "The sources of the harvester's library are missing from this installation.",
        remedy="Install gpupool again.",
    )


def compile_library(path: Path, *extra: str, compiler: str | None = None) -> None:
    """Compile the library to ``path``, in one step; ``extra`` flags come last.

    Raises NoCompilerError, CompileError.
    """
    program = compiler or next(filter(None, map(shutil.which, COMPILERS)), None)
    if program is None:
        raise NoCompilerError
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    command = [program, *FLAGS, *extra, "-o", str(unfinished), *map(str, sources()), *LINK_FLAGS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
        if done.returncode != 0:
            raise CompileError(
                f"{program} cannot compile the harvester's library: {_first_error(done.stderr)}"
            )
        unfinished.chmod(0o755)
        unfinished.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{program} cannot compile the harvester's library: {error}.") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _loads(path: Path) -> bool:
    """Tell whether a library works here: one made for a newer C library would be passed over without a word later."""
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _compiled(folder: Path) -> Path:
    path = ensure_private_dir(folder) / f"libgpupool_harvester-{_digest()}.so"
    if not path.is_file():
        compile_library(path)
    return path


def _digest() -> str:
    """Return what tells apart the libraries of two releases."""
    digest = hashlib.sha256(" ".join((*FLAGS, *LINK_FLAGS)).encode())
    folder = sources()[0].parent
    for path in (*sources(), *sorted(folder.glob("*.h"))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _first_error(said: str) -> str:
    """Return the first line of a compiler's output that names a fault."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "it said nothing")
