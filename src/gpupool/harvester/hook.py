"""The `.pth` file that puts our library in front of the bundled one in a harvester's process.

Python runs such a line whenever it starts in that environment, for every program. So it looks first whether this
program is the harvester (or `chia plots check`, which tests plots in the same way), swallows nothing but its own
faults, and leaves Python as it is where the library has gone.
"""

from pathlib import Path
from typing import Final

NAME: Final = "gpupool-harvester.pth"
_CODE: Final = """\
def gpupool_harvester():
    import os, sys
    words = [os.path.basename(word) for word in sys.orig_argv[1:] if not word.startswith('-')]
    checks = words[:1] == ['chia'] and {{'plots', 'check'}} <= set(words)
    if words[:1] != ['chia_harvester'] and not checks:
        return
    library = {library}
    if not os.path.exists(library):
        return
    try:
        import ctypes
        for name, value in {variables}.items():
            os.environ.setdefault(name, value)
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    except Exception as error:
        try:
            print('gpupool: the harvester goes on without the pool:', error, file=sys.stderr)
        except Exception:
            pass
try:
    gpupool_harvester()
finally:
    del gpupool_harvester
"""


def path_file(library: Path, variables: dict[str, str]) -> bytes:
    """Return the content of the `.pth` file: one line of ASCII, whatever the paths hold."""
    code = _CODE.format(library=ascii(str(library)), variables=ascii(variables))
    return f"import sys; exec({code!a})\n".encode("ascii")
