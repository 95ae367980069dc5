"""The ``CHIAPOS_*`` variables that farms have in their scripts, read with the meanings they have there.

Server and client read them in one place, so that a value means the same to both, and a value that makes no sense is
an error that names the variable instead of a default taken in silence. An empty variable counts as not set.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, overload

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.addresses import DEFAULT_PORT, Address, parse_addresses

PREFIX: Final = "CHIAPOS_"
NAMES: Final = (
    "MAX_CORES",
    "MAX_GPU_DEVICES",
    "MAX_CUDA_DEVICES",
    "MAX_OPENCL_DEVICES",
    "MIN_GPU_LOG_ENTRIES",
    "RECOMPUTE_HOST",
    "RECOMPUTE_PORT",
    "RECOMPUTE_TIMEOUT",
    "RECOMPUTE_CONNECT_TIMEOUT",
    "RECOMPUTE_RETRY_INTERVAL",
)
"""Every variable that is read, without the prefix."""
_MILLION: Final = 1_000_000
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChiaposVariables:
    """What the environment says about recompute."""

    max_cores: int = 16
    """Threads to compute with; 0 or less means all cores."""
    max_gpu_devices: int | None = None
    """Most CUDA and most OpenCL cards; None means all, 0 none."""
    max_cuda_devices: int | None = None
    """Most CUDA cards; overrides ``max_gpu_devices``."""
    max_opencl_devices: int | None = None
    """Most OpenCL cards; overrides ``max_gpu_devices``."""
    min_gpu_log_entries: int = 21
    """Base-2 logarithm of the smallest job that goes to a GPU."""
    recompute_hosts: tuple[Address, ...] = ()
    """Servers or proxies to ask, in the order given; empty: recompute is local."""
    recompute_port: int = DEFAULT_PORT
    """Port of hosts that name none."""
    recompute_timeout_s: float = 5.0
    """Seconds for one request."""
    recompute_connect_timeout_s: float = 2.0
    """Seconds for connecting."""
    recompute_retry_interval_s: float = 100.0
    """Seconds that a failed host is left alone."""

    @property
    def cuda_limit(self) -> int | None:
        """Most CUDA cards; None means all."""
        return self.max_gpu_devices if self.max_cuda_devices is None else self.max_cuda_devices

    @property
    def opencl_limit(self) -> int | None:
        """Most OpenCL cards; None means all."""
        return self.max_gpu_devices if self.max_opencl_devices is None else self.max_opencl_devices

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables of ``environment`` (this process's own by default).

        Raises InvalidInputError that names the variable where a value makes no sense.
        """
        read = _Reader(os.environ if environment is None else environment)
        port = read.number("RECOMPUTE_PORT", 1, 65535, DEFAULT_PORT)
        return cls(
            max_cores=read.number("MAX_CORES", -_MILLION, _MILLION, 16),
            max_gpu_devices=read.number("MAX_GPU_DEVICES", 0, 1024, None),
            max_cuda_devices=read.number("MAX_CUDA_DEVICES", 0, 1024, None),
            max_opencl_devices=read.number("MAX_OPENCL_DEVICES", 0, 1024, None),
            min_gpu_log_entries=read.number("MIN_GPU_LOG_ENTRIES", 0, 64, 21),
            recompute_hosts=read.hosts("RECOMPUTE_HOST", port),
            recompute_port=port,
            recompute_timeout_s=read.number("RECOMPUTE_TIMEOUT", 1, _MILLION, 5000) / 1000,
            recompute_connect_timeout_s=read.number("RECOMPUTE_CONNECT_TIMEOUT", 1, _MILLION, 2000) / 1000,
            recompute_retry_interval_s=float(read.number("RECOMPUTE_RETRY_INTERVAL", 0, _MILLION, 100)),
        )


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    @overload
    def number(self, name: str, least: int, most: int, default: int) -> int: ...
    @overload
    def number(self, name: str, least: int, most: int, default: None) -> int | None: ...
    def number(self, name: str, least: int, most: int, default: int | None) -> int | None:
        text = self._text(name)
        if not text:
            return default
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise InvalidInputError(
                f"{PREFIX}{name} is {text[:40]!r}, which is not a whole number from {least} to {most}.",
                remedy="Correct the variable or remove it, then start again.",
            )
        return int(text)

    def hosts(self, name: str, port: int) -> tuple[Address, ...]:
        try:
            return parse_addresses(self._text(name), port)
        except InvalidInputError as error:
            raise InvalidInputError(f"{PREFIX}{name}: {error.message}", remedy=error.remedy) from error

    def _text(self, name: str) -> str:
        return self._environment.get(PREFIX + name, "").strip()
