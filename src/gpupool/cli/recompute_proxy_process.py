"""The process that the proxy serves in: started anew, without what reading the command line has loaded.

A proxy stands on small machines and holds a thousand clients; the command tree, its help and its checks would take
more memory than all of those. So the command reads its options, and this process takes its place, with the same pid.
Settings go through a file without a name, since the arguments of a process can be read by every user; the words of
the command follow for whoever looks for it in a list of processes.
"""

import os
import sys
import tempfile
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final, NoReturn, cast

from gpupool.core.errors import GpupoolError
from gpupool.core.standard_streams import outlive_failures

if TYPE_CHECKING:
    from gpupool.recompute.proxy.settings import ProxySettings

UNWANTED: Final = ("rich", "pygments", "attr")
"""What the log library takes along where it is installed, for traces with colours that a proxy never shows."""


def become_proxy(settings: "ProxySettings", words: list[str]) -> None:
    """Serve with ``settings`` in place of this process; where processes cannot be replaced, in this one."""
    if sys.platform == "win32":
        from gpupool.recompute.proxy.main import run

        run(settings, say)
        return
    from gpupool.recompute.proxy.settings_text import to_text

    with tempfile.TemporaryFile("w") as file:
        file.write(to_text(settings))
        file.flush()
        os.set_inheritable(file.fileno(), True)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", __name__, str(file.fileno()), *words])


def leave_out() -> None:
    """Keep what is not wanted from being imported; called before anything of the proxy is."""
    sys.modules.update(dict.fromkeys(UNWANTED, cast("ModuleType", None)))
    import_module("structlog")
    # It looks for them once, when it is loaded; the HTTP client that follows control's feed needs one of them.
    for name in UNWANTED:
        del sys.modules[name]


def serve(settings: "ProxySettings") -> None:
    """Serve until stopped; a fault is told as by every command, and ends with its exit code."""
    from gpupool.recompute.proxy.main import run

    outlive_failures()
    try:
        run(settings, say)
    except GpupoolError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)


def fail(error: GpupoolError) -> NoReturn:
    """Tell what happened and what to do, and exit with the code of the error."""
    from gpupool.cli.invocation import as_typed

    sys.stderr.write(as_typed(f"Error [{error.code}]: {error.message}\n  What to do: {error.remedy}\n"))
    sys.exit(error.exit_code)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read the settings that `become_proxy` has left, and serve."""
    leave_out()
    from gpupool.recompute.proxy.compiled import prefer

    prefer()
    from gpupool.recompute.proxy.settings_text import from_text

    with os.fdopen(int(sys.argv[1]), "r") as file:
        file.seek(0)
        settings = from_text(file.read())
    serve(settings)


if __name__ == "__main__":
    main()
