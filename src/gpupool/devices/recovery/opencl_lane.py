"""Lanes through OpenCL: AMD and Intel cards, NVIDIA cards without CUDA, and PoCL, which runs the kernels on a CPU.

Built programs are kept per device and shared by its lanes. Everything that pyopencl raises ends here.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

from gpupool.devices.recovery.errors import DeviceFaultError, DeviceMemoryError
from gpupool.devices.recovery.port import Argument, Array, kernel_source, word

_GROUP: Final = 64
_FREE_MEMORY_AMD: Final = 0x4039
_MEMORY_CODES: Final = frozenset({-4, -5, -61})
"""CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_INVALID_BUFFER_SIZE."""


class OpenClLane:
    """A queue on one OpenCL device; ``device`` is pyopencl's."""

    def __init__(self, device: Any) -> None:
        """Raises DeviceFaultError where the device cannot be used."""
        self._cl = import_module("pyopencl")
        self._device = device
        self.memory_bytes = int(device.global_mem_size)
        self.largest_buffer = int(device.max_mem_alloc_size)
        with self._translated():
            self._context, program = _program(device)
            self._queue = self._cl.CommandQueue(self._context, device)
            self._kernels = {kernel.function_name: kernel for kernel in program.all_kernels()}

    def free_bytes(self) -> int:
        """Return what AMD's drivers say is free, else all memory, since OpenCL itself has no such question."""
        return _told_free(self._cl, self._device) or self.memory_bytes

    def buffer(self, size: int) -> Any:
        """Return a buffer; see `Lane.buffer`."""
        with self._translated():
            return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size)

    def release(self, buffer: Any) -> None:
        """Give a buffer back."""
        with self._translated():
            buffer.release()

    def write(self, buffer: Any, values: Array) -> None:
        """Copy to a buffer."""
        with self._translated():
            self._cl.enqueue_copy(self._queue, buffer, values, is_blocking=True)

    def fill(self, buffer: Any, value: int, size: int) -> None:
        """Set words of a buffer."""
        with self._translated():
            self._cl.enqueue_fill_buffer(self._queue, buffer, word(value), 0, size)

    def launch(self, kernel: str, items: int, arguments: Sequence[Argument]) -> None:
        """Queue a kernel."""
        with self._translated():
            self._kernels[kernel](self._queue, (-(-items // _GROUP) * _GROUP,), (_GROUP,), *arguments)

    def read(self, buffer: Any, values: Array) -> None:
        """Wait, then copy from a buffer."""
        with self._translated():
            self._cl.enqueue_copy(self._queue, values, buffer, is_blocking=True)

    def close(self) -> None:
        """Wait for what is queued; the rest goes with the last reference."""
        with self._translated():
            self._queue.finish()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._cl.Error as error:
            code = getattr(error, "code", None)
            kind = DeviceMemoryError if code in _MEMORY_CODES else DeviceFaultError
            raise kind(
                f"OpenCL: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error


def _told_free(cl: Any, device: Any) -> int | None:
    try:
        told = device.get_info(_FREE_MEMORY_AMD)
    except cl.Error:
        return None
    # KiB, of all memory and of its largest block; some releases of the binding give the first one alone.
    whole = next(iter(told), 0) if isinstance(told, Iterable) else told
    return int(whole) * 1024 or None


@cache
def _program(device: Any) -> tuple[Any, Any]:
    """Return a context and the built program; building takes a second or so, once a process."""
    cl = import_module("pyopencl")
    context = cl.Context([device])
    return context, cl.Program(context, kernel_source()).build()
