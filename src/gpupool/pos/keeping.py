"""Compiled kernels on disk: a second start loads in half a second what the first one compiled in ten.

They save time and nothing else, so no damage to them may keep a machine from starting. numba's own files end the process
or raise nearly anything where a power cut has left them empty, half written or with a block of zeros. Here each file has
the digest of its content before it; one that does not fit, or is not there, is compiled anew, and a folder that is full
or read-only keeps nothing. What decides whether a kernel may be used (types, processor, bytecode) is numba's.
"""

import hashlib
import os
import pickle
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

_DIGEST_BYTES: Final = 32


class KeptKernels(FunctionCache):
    """The compiled versions of one function, one file for each."""

    def __init__(self, function: Callable[..., Any], version: str) -> None:
        """``version`` names the source of all functions, the parts of this one among them.

        Raises RuntimeError where there is no folder that may be written.
        """
        base: Any = super()
        base.__init__(function)
        self._version = version
        self._rules: Any = self._impl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for the types ``sig``; None where it has to be compiled."""
        # Compiled code needs the runtime that counts references to arrays, and nothing else of what `refresh` loads for
        # the compiler; that takes half of a warm start, and the compiler asks for it by itself.
        rtsys.initialize(target_context)
        try:
            sealed = self._path(sig, target_context.codegen()).read_bytes()
        except OSError:
            return None
        digest, content = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != digest:
            return None
        # Whoever may write this folder may write the program, too: it is this user's own.
        return self._rules.rebuild(target_context, pickle.loads(content))  # noqa: S301

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for the types ``sig``, where that can be."""
        if not self._rules.check_cachable(data):
            return
        write: Any = dumps
        content: bytes = write(self._rules.reduce(data))
        path = self._path(sig, data.codegen)
        beside = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
        with suppress(OSError):
            self._rules.locator.ensure_cache_path()
            try:
                beside.write_bytes(hashlib.sha256(content).digest() + content)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)

    def _path(self, sig: Any, codegen: Any) -> Path:
        numbas_key: Any = self._index_key
        key = repr((numba.__version__, self._version, numbas_key(sig, codegen)))
        name = f"{self._rules.filename_base}.{hashlib.sha256(key.encode()).hexdigest()[:16]}.kernel"
        return Path(self._cache_path) / name
