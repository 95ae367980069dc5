"""The decompressor that Chia's own software uses, driven as a black box: an oracle for tests, a yardstick for benchmarks.

The chiapos package carries it as a shared library. Its C interface takes line points, not a plot, so a real proof
can be truncated and handed to it like to ours.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

PROOF_LENGTH: Final = 64
_OK: Final = 1


class Config(ctypes.Structure):
    _fields_ = [
        ("api_version", ctypes.c_uint32),
        ("thread_count", ctypes.c_uint32),
        ("cpu_offset", ctypes.c_uint32),
        ("disable_affinity", ctypes.c_int32),
        ("gpu_request", ctypes.c_uint32),
        ("gpu_index", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 16),
    ]


class ProofRequest(ctypes.Structure):
    _fields_ = [
        ("proof", ctypes.c_uint64 * PROOF_LENGTH),
        ("level", ctypes.c_uint32),
        ("plot_id", ctypes.c_char_p),
    ]


class _WideNumber(ctypes.Structure):
    _fields_ = [("high", ctypes.c_uint64), ("low", ctypes.c_uint64)]


class QualityRequest(ctypes.Structure):
    _fields_ = [
        ("plot_id", ctypes.c_char_p),
        ("challenge", ctypes.c_char_p),
        ("level", ctypes.c_uint32),
        ("line_points", _WideNumber * 2),
        ("x1", ctypes.c_uint64),
        ("x2", ctypes.c_uint64),
    ]


class OfficialDecompressor:
    """One context of the library, with threads of its own."""

    def __init__(self, library: Any, context: ctypes.c_void_p) -> None:
        self._library, self._context = library, context

    def proof(self, plot_id: bytes, level: int, line_points: Sequence[int]) -> list[int] | None:
        """Return the 64 x in its own order, or None where it finds no proof."""
        request = ProofRequest(level=level, plot_id=plot_id)
        for index, line_point in enumerate(line_points):
            request.proof[index] = line_point
        if self._library.grFetchProofForChallenge(self._context, ctypes.byref(request)) != _OK:
            return None
        return list(request.proof)

    def quality(
        self, plot_id: bytes, level: int, line_points: Sequence[int], challenge: bytes
    ) -> tuple[int, int] | None:
        """Return the pair of x that the challenge picks, smaller first, or None where it finds none."""
        request = QualityRequest(plot_id=plot_id, challenge=challenge, level=level)
        for index, line_point in enumerate(line_points):
            request.line_points[index].high = line_point >> 64
            request.line_points[index].low = line_point & (2**64 - 1)
        if self._library.grGetFetchQualitiesXPair(self._context, ctypes.byref(request)) != _OK:
            return None
        smaller, larger = sorted((request.x1, request.x2))
        return smaller, larger


def bundled_library() -> Path:
    """Return where chiapos keeps it."""
    found = find_spec("chiapos")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("chiapos.libs/libbladebit_harvester*.so"))


@contextmanager
def official_decompressor(level: int, threads: int = 1) -> Iterator[OfficialDecompressor]:
    """Give the official decompressor with memory for ``level``."""
    library = ctypes.CDLL(str(bundled_library()))
    context = ctypes.c_void_p()
    config = Config(api_version=1, thread_count=threads, disable_affinity=1)
    size = ctypes.c_size_t(ctypes.sizeof(config))
    assert library.grCreateContext(ctypes.byref(context), ctypes.byref(config), size) == _OK
    library.grPreallocateForCompressionLevel(context, 32, level)
    try:
        yield OfficialDecompressor(library, context)
    finally:
        library.grDestroyContext(context)
