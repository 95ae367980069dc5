"""Compiling the kernels for NVIDIA cards, without a driver or a card: NVIDIA's run-time compiler as PyPI ships it.

Two generations are known. Version 13 knows cards from Turing (7.5) on and needs a driver of its own generation; version
12 still knows Pascal and Volta (6.0 to 7.2) and goes with older drivers. Only seven C functions are called, so the
compiler is loaded with ctypes, which also lets both generations live in one process.
"""

import ctypes
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Final

from gpupool.devices.recovery.errors import DeviceFaultError

PACKAGES: Final = {13: "nvidia-cuda-nvrtc", 12: "nvidia-cuda-nvrtc-cu12"}
_OLDEST: Final = {13: (7, 5), 12: (5, 2)}
_DRIVER_PER_GENERATION: Final = 1000
"""Drivers tell the newest CUDA that they can run as 1000 * major + 10 * minor."""


class CompilerMissingError(DeviceFaultError):
    """The compiler that this card and driver need is not installed."""

    code = "compiler_missing"


def generation_for(capability: tuple[int, int], driver: int) -> int:
    """Return which compiler generation (12, 13) serves a card of ``capability`` under ``driver`` (13000 is CUDA 13.0).

    Raises DeviceFaultError for a card or driver older than either.
    """
    generation = 13 if driver >= 13 * _DRIVER_PER_GENERATION and capability >= _OLDEST[13] else 12
    if driver < 12 * _DRIVER_PER_GENERATION or capability < _OLDEST[generation]:
        raise DeviceFaultError(
            f"CUDA cannot be used: compute capability {capability[0]}.{capability[1]}, driver for CUDA"
            f" {driver // 1000}.{driver % 1000 // 10}.",
            remedy="Update the driver to one for CUDA 12 or newer; older cards are used through OpenCL.",
        )
    return generation


def obstacle(capability: tuple[int, int], driver: int) -> str | None:
    """Return why a card of ``capability`` cannot be used through CUDA under ``driver``; None where it can."""
    try:
        generation = generation_for(capability, driver)
        _installed(generation)
    except DeviceFaultError as error:
        return f"{error.message} {error.remedy}"
    return None


def compile_cubin(source: str, capability: tuple[int, int], generation: int) -> tuple[bytes, str]:
    """Return machine code for cards of ``capability`` and what the compiler reports (registers, spills).

    Raises CompilerMissingError, or DeviceFaultError with the compiler's own words.
    """
    library = _library(generation)
    program = ctypes.c_void_p()
    _check(
        library,
        library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None),
    )
    try:
        options = [
            f"--gpu-architecture=sm_{capability[0]}{capability[1]}",
            "--std=c++17",
            "--ptxas-options=--verbose",
        ]
        packed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = library.nvrtcCompileProgram(program, len(options), packed)
        report = _text(library, program, "ProgramLog")
        if code:
            raise DeviceFaultError(f"The kernels do not compile for this card: {report.strip() or code}")
        return _bytes(library, program, "CUBIN"), report
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(library: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, library[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
    content = ctypes.create_string_buffer(size.value)
    _check(library, library[f"nvrtcGet{what}"](program, content))
    return content.raw


def _text(library: Any, program: ctypes.c_void_p, what: str) -> str:
    return _bytes(library, program, what).rstrip(b"\0").decode(errors="replace")


def _check(library: Any, code: int) -> None:
    if code:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise DeviceFaultError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}")


@cache
def _library(generation: int) -> Any:
    library, others = _installed(generation)
    # Its helper library lies beside it, where the loader does not look by itself.
    for path in others:
        if path.name.startswith("libnvrtc-builtins"):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


def _installed(generation: int) -> tuple[Path, list[Path]]:
    """Return the compiler's library and all files of its package; raises CompilerMissingError."""
    package = PACKAGES[generation]
    try:
        paths = [Path(str(path.locate())) for path in files(package) or ()]
    except PackageNotFoundError:
        paths = []
    library = _main_library(paths, generation)
    if library is None:
        raise CompilerMissingError(
            f"This card needs NVIDIA's compiler of CUDA {generation}, which is not installed.",
            remedy=f"Install it (pip install {package}), or use the card through OpenCL.",
        )
    return library, paths


def _main_library(paths: Iterable[Path], generation: int) -> Path | None:
    pattern = f"nvrtc64_{generation}0_0.dll" if sys.platform == "win32" else f"libnvrtc.so.{generation}"
    return next((path for path in paths if path.name == pattern), None)
