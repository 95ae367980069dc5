"""The part of NVIDIA's driver that recovery uses, called with ctypes.

`libcuda` comes with the driver, and its C functions have kept their names and meanings since CUDA 4 (`_v2` is part of a
name). Calling them directly works with every driver found on a rig, whereas Python bindings want one of their own
generation beside them.
"""

import ctypes
import sys
from typing import Any, Final

from gpupool.devices.recovery.errors import DeviceFaultError, DeviceMemoryError

Handle = ctypes.c_void_p
Address = ctypes.c_uint64
_OUT_OF_MEMORY: Final = 2
_NO_DEVICE: Final = 100
_WORD, _SIZE, _POINTER = ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (_WORD,),
    "cuDriverGetVersion": (_POINTER,),
    "cuDeviceGetCount": (_POINTER,),
    "cuDeviceGet": (_POINTER, ctypes.c_int),
    "cuDeviceGetName": (_POINTER, ctypes.c_int, ctypes.c_int),
    "cuDeviceGetAttribute": (_POINTER, ctypes.c_int, ctypes.c_int),
    "cuDeviceTotalMem_v2": (_POINTER, ctypes.c_int),
    "cuDeviceGetPCIBusId": (_POINTER, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER, ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxSetCurrent": (Handle,),
    "cuModuleLoadData": (_POINTER, _POINTER),
    "cuModuleUnload": (Handle,),
    "cuModuleGetFunction": (_POINTER, Handle, ctypes.c_char_p),
    "cuMemGetInfo_v2": (_POINTER, _POINTER),
    "cuMemAlloc_v2": (_POINTER, _SIZE),
    "cuMemFree_v2": (Address,),
    "cuMemcpyHtoDAsync_v2": (Address, _POINTER, _SIZE, Handle),
    "cuMemcpyDtoHAsync_v2": (_POINTER, Address, _SIZE, Handle),
    "cuMemsetD32Async": (Address, _WORD, _SIZE, Handle),
    "cuStreamCreate": (_POINTER, _WORD),
    "cuStreamSynchronize": (Handle,),
    "cuStreamDestroy_v2": (Handle,),
    "cuLaunchKernel": (Handle, *[_WORD] * 7, Handle, _POINTER, _POINTER),
    "cuGetErrorName": (ctypes.c_int, _POINTER),
}
"""Parameters of each function; all return an error code."""


class CudaDriver:
    """The driver's functions by name; one that fails raises DeviceFaultError or DeviceMemoryError."""

    def __init__(self, library: Any) -> None:
        self._functions = {name: _typed(library, name, types) for name, types in SIGNATURES.items()}
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of `SIGNATURES`."""
        code = self._functions[name](*arguments)
        if code:
            kind = DeviceMemoryError if code == _OUT_OF_MEMORY else DeviceFaultError
            raise kind(f"CUDA: {name} failed: {self._error_name(code)}.")

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function whose first parameter is an int to be filled in, and return that."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def handle(self, name: str, *arguments: Any) -> Handle:
        """Call a function whose first parameter is a handle to be filled in, and return that."""
        value = Handle()
        self.call(name, ctypes.byref(value), *arguments)
        return value

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._functions["cuGetErrorName"](code, ctypes.byref(text)) or not text.value:
            return f"error {code}"
        return text.value.decode(errors="replace")


def load_driver() -> CudaDriver | None:
    """Return the driver of this machine, or None where there is none or it finds no card."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    try:
        driver = CudaDriver(library)
        return driver if driver.number("cuDeviceGetCount") else None
    except (AttributeError, DeviceFaultError):
        return None


def _typed(library: Any, name: str, types: tuple[Any, ...]) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = types, ctypes.c_int
    return function
