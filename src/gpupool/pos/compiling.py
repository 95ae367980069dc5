"""How functions of this package become machine code: one place for the compiler's options.

Kernels give up the interpreter lock, so that several threads recover proofs at once, and are kept in the folder
that ``NUMBA_CACHE_DIR`` names when numba is first imported (without it, beside the source). Parts are merged into
their callers by LLVM, which compiles four times faster than merging them in numba and runs as fast.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, ParamSpec, TypeAlias, TypeVar

import numba
import numpy as np
from numba.core import config
from numpy.typing import NDArray

from gpupool.pos.keeping import KeptKernels

P = ParamSpec("P")
R = TypeVar("R")

Words: TypeAlias = NDArray[np.uint32]
LongWords: TypeAlias = NDArray[np.uint64]
Indices: TypeAlias = NDArray[np.int32]


def _source_digest() -> str:
    """Name this version of the package's code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# numba notices a change of a kernel's own file only, not of a part that it got from another file.
_VERSION: Final = _source_digest()
_options = vars(config)
if _options["CACHE_DIR"]:
    _options["CACHE_DIR"] = str(Path(_options["CACHE_DIR"]) / f"pos-{_VERSION}")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that Python calls: no interpreter lock, no bounds checks, kept on disk."""
    compiled: Callable[P, R] = numba.njit(nogil=True, boundscheck=False, error_model="numpy")(function)
    with suppress(RuntimeError):  # no folder to keep it in
        vars(compiled)["_cache"] = KeptKernels(function, _VERSION)
    return compiled


def part(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that only kernels call, merged into each of them."""
    compiled: Callable[P, R] = numba.njit(
        nogil=True, forceinline=True, boundscheck=False, error_model="numpy"
    )(function)
    return compiled
