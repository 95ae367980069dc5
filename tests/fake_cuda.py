"""A CUDA driver where there is no card: the C functions that recovery calls, with their real parameters, on a CPU.

Memory is the machine's own, so that an address given to `cuMemcpyHtoDAsync` is really written to. Kernels are the same
source, run by PoCL on that very memory. It is as strict as the real driver about contexts, addresses and sizes.
"""

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl

from gpupool.devices.recovery.cuda_driver import SIGNATURES
from gpupool.devices.recovery.port import kernel_source

INVALID, OUT_OF_MEMORY, NO_CONTEXT, NOT_FOUND, LAUNCH_FAILED = 1, 2, 201, 500, 719
NAMES = {INVALID: b"CUDA_ERROR_INVALID_VALUE", OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY"}
NAMES |= {NO_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT", NOT_FOUND: b"CUDA_ERROR_NOT_FOUND"}
NAMES |= {LAUNCH_FAILED: b"CUDA_ERROR_LAUNCH_FAILED"}
CONTEXT, MODULE, STREAM = 0xC0DE, 0x30D0, 0x57E0


class FakeCuda:
    """One card; ``library`` goes where the loaded `libcuda` would."""

    def __init__(
        self, *, memory: int = 8 << 30, capability: tuple[int, int] = (8, 6), version: int = 13000
    ) -> None:
        self.memory, self.capability, self.version = memory, capability, version
        self.blocks: dict[int, Any] = {}
        self.broken = False
        self.elsewhere = 0
        """Bytes that other programs hold."""
        self.streams = 0
        self._current = threading.local()
        device = cl.get_platforms()[0].get_devices()[0]
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(self._context)
        program = cl.Program(self._context, kernel_source()).build(["-cl-kernel-arg-info"])
        self._kernels = {kernel.function_name: kernel for kernel in program.all_kernels()}
        self._handles = {0xF000 + i: name for i, name in enumerate(sorted(self._kernels))}
        self.library = SimpleNamespace(**{name: self._exported(name) for name in SIGNATURES})

    def _exported(self, name: str) -> Any:
        body: Callable[..., int | None] = getattr(self, name.removesuffix("_v2"))
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *SIGNATURES[name])
        return prototype(lambda *arguments: body(*arguments) or 0)

    # -- what the driver tells -------------------------------------------------------------------------------

    def cuInit(self, flags: int) -> int:
        return INVALID if flags else 0

    def cuDriverGetVersion(self, out: int) -> None:
        _int(out, self.version)

    def cuDeviceGetCount(self, out: int) -> None:
        _int(out, 1)

    def cuDeviceGet(self, out: int, index: int) -> int:
        _int(out, 0)
        return INVALID if index else 0

    def cuDeviceGetName(self, out: int, size: int, device: int) -> None:
        ctypes.memmove(out, b"Pretended Card\0", min(size, 15))

    def cuDeviceGetPCIBusId(self, out: int, size: int, device: int) -> None:
        ctypes.memmove(out, b"0000:0B:00.0\0", min(size, 13))

    def cuDeviceTotalMem(self, out: int, device: int) -> None:
        ctypes.c_size_t.from_address(out).value = self.memory

    def cuDeviceGetAttribute(self, out: int, attribute: int, device: int) -> None:
        _int(out, {75: self.capability[0], 76: self.capability[1], 16: 28, 13: 1_777_000}[attribute])

    def cuGetErrorName(self, code: int, out: int) -> int:
        if code not in NAMES:
            return INVALID
        ctypes.c_char_p.from_address(out).value = NAMES[code]
        return 0

    # -- contexts, code, streams -----------------------------------------------------------------------------

    def cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        ctypes.c_void_p.from_address(out).value = CONTEXT

    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        self._current = threading.local()

    def cuCtxSetCurrent(self, context: int) -> None:
        self._current.context = context

    def cuModuleLoadData(self, out: int, image: int) -> int:
        ctypes.c_void_p.from_address(out).value = MODULE
        return self._here() or (0 if ctypes.string_at(image, 4) == b"\x7fELF" else INVALID)

    def cuModuleUnload(self, module: int) -> int:
        return self._here() or (0 if module == MODULE else INVALID)

    def cuModuleGetFunction(self, out: int, module: int, name: bytes) -> int:
        handle = next((handle for handle, known in self._handles.items() if known == name.decode()), None)
        ctypes.c_void_p.from_address(out).value = handle
        return self._here() or (0 if handle and module == MODULE else NOT_FOUND)

    def cuStreamCreate(self, out: int, flags: int) -> int:
        self.streams += 1
        ctypes.c_void_p.from_address(out).value = STREAM
        return self._here()

    def cuStreamSynchronize(self, stream: int) -> int:
        self._queue.finish()
        return self._here() or (0 if stream == STREAM else INVALID)

    def cuStreamDestroy(self, stream: int) -> int:
        self.streams -= 1
        return self._here() or (0 if stream == STREAM else INVALID)

    # -- memory and work -------------------------------------------------------------------------------------

    def cuMemGetInfo(self, free: int, total: int) -> int:
        ctypes.c_size_t.from_address(free).value = self._free()
        ctypes.c_size_t.from_address(total).value = self.memory
        return self._here()

    def cuMemAlloc(self, out: int, size: int) -> int:
        if size > self._free():
            return OUT_OF_MEMORY
        block = np.full(size, 0xA5, np.uint8)
        self.blocks[block.ctypes.data] = block
        ctypes.c_uint64.from_address(out).value = block.ctypes.data
        return self._here() or (0 if size else INVALID)

    def cuMemFree(self, address: int) -> int:
        return self._here() or (0 if self.blocks.pop(address, None) is not None else INVALID)

    def cuMemcpyHtoDAsync(self, address: int, source: int, size: int, stream: int) -> int:
        return self._inside(address, size) or (ctypes.memmove(address, source, size) and 0)

    def cuMemcpyDtoHAsync(self, target: int, address: int, size: int, stream: int) -> int:
        return self._inside(address, size) or (ctypes.memmove(target, address, size) and 0)

    def cuMemsetD32Async(self, address: int, word: int, count: int, stream: int) -> int:
        fault = self._inside(address, 4 * count)
        if not fault:
            self.blocks[address].view(np.uint8)[: 4 * count].view(np.uint32)[:] = word
        return fault

    def cuLaunchKernel(self, function: int, *rest: Any) -> int:
        blocks, threads, parameters = rest[:3], rest[3:6], rest[8]
        kernel = self._kernels.get(self._handles.get(function, ""))
        if kernel is None or blocks[1:] != (1, 1) or threads[1:] != (1, 1) or not blocks[0]:
            return INVALID
        if self.broken:
            return LAUNCH_FAILED
        places = (ctypes.c_void_p * kernel.num_args).from_address(parameters)
        arguments = [self._argument(kernel, i, int(places[i] or 0)) for i in range(kernel.num_args)]
        kernel(self._queue, (blocks[0] * threads[0],), (threads[0],), *arguments)
        self._queue.finish()
        return self._here()

    def _argument(self, kernel: Any, index: int, place: int) -> Any:
        if not kernel.get_arg_info(index, cl.kernel_arg_info.TYPE_NAME).endswith("*"):
            return np.uint32(ctypes.c_uint32.from_address(place).value)
        block = self.blocks[ctypes.c_uint64.from_address(place).value]
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self._context, flags, hostbuf=block)

    def held(self) -> int:
        """Return the bytes of all buffers."""
        return sum(block.nbytes for block in self.blocks.values())

    def _free(self) -> int:
        return self.memory - self.elsewhere - self.held()

    def _here(self) -> int:
        return 0 if getattr(self._current, "context", None) == CONTEXT else NO_CONTEXT

    def _inside(self, address: int, size: int) -> int:
        block = self.blocks.get(address)
        return self._here() or (0 if block is not None and size <= block.nbytes else INVALID)


def _int(out: int, value: int) -> None:
    ctypes.c_int.from_address(out).value = value
