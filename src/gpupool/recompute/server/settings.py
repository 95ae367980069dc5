"""What a recompute server can be told; its own variables begin with ``GPUPOOL_RECOMPUTE_``."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from gpupool.contracts.recompute import MAX_DEADLINE_MS, PORT
from gpupool.core.settings import ProcessSettings


class RecomputeServerSettings(ProcessSettings):
    """Settings of one server."""

    recompute_host: str = "127.0.0.1"
    """Address to listen on; anything but loopback opens the server to the network."""
    recompute_port: Annotated[int, Field(ge=0, le=65535)] = PORT
    """Port to listen on; 0 takes a free one."""
    recompute_threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Requests that are worked on at once."""
    recompute_queue_room: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Requests that may wait; the next one is refused with 429."""
    recompute_deadline_ms: Annotated[int, Field(ge=1, le=MAX_DEADLINE_MS)] = 60_000
    """Time for requests that name none."""
    recompute_idle_seconds: Annotated[float, Field(gt=0, le=3600)] = 75.0
    """How long a connection may wait for a request, or take to send its head: idle ones cost a slot."""
    recompute_drain_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """How long work in progress may go on after the signal to stop."""

    @property
    def kernel_cache(self) -> Path:
        """Where compiled kernels are kept, unless ``NUMBA_CACHE_DIR`` says otherwise."""
        return self.folders.cache / "numba"
