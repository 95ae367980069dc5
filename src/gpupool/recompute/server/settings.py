"""What a recompute server can be told; its own variables begin with ``GPUPOOL_RECOMPUTE_``."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gpupool.contracts.recompute import MAX_DEADLINE_MS, PORT
from gpupool.core.settings import ProcessSettings
from gpupool.recompute.server.capacity import ThreadCount, usable_cores


class RecomputeServerSettings(ProcessSettings):
    """Settings of one server."""

    recompute_host: str = "127.0.0.1"
    """Address to listen on; anything but loopback opens the server to the network."""
    recompute_port: Annotated[int, Field(ge=0, le=65535)] = PORT
    """Port to listen on; 0 takes a free one."""
    recompute_threads: Annotated[int, Field(le=1_000_000)] = 16
    """Threads that compute, one request each, never more than cores; 0 or less means all cores."""
    recompute_queue_room: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Requests that may wait; the next one is refused with 429."""
    recompute_connections: Annotated[int, Field(ge=1, le=100_000)] = 2000
    """Connections that may be open; the next one is closed."""
    recompute_deadline_ms: Annotated[int, Field(ge=1, le=MAX_DEADLINE_MS)] = 60_000
    """Time for requests that name none."""
    recompute_idle_seconds: Annotated[float, Field(gt=0, le=3600)] = 75.0
    """How long a connection may wait for a request, or take to send its head: idle ones cost a slot."""
    recompute_drain_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """How long work in progress may go on after the signal to stop."""
    recompute_solvers: Annotated[int, Field(ge=0, le=256)] = 1
    """Solutions of v2 plots worked on at once, which share all cores; 0 offers none. Needs chia_rs."""
    recompute_stuck_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """How long a worker may make no progress before it counts as hanging and its process is replaced."""
    recompute_token_file: Path | None = None
    """File of bearer tokens, one a line; a request must bring one of them."""
    recompute_tls_cert: Path | None = None
    """Certificate (PEM, with its chain) that turns TLS on; plain connections are then closed."""
    recompute_tls_key: Path | None = None
    """Key of the certificate (PEM)."""
    recompute_client_ca: Path | None = None
    """Authority (PEM) that clients' certificates must come from: mutual TLS."""

    @property
    def threads(self) -> ThreadCount:
        """How many threads were asked for, and how many can be had."""
        return ThreadCount(self.recompute_threads, usable_cores())

    @property
    def home_is_given(self) -> bool:
        """Whether somebody chose the state folder, by variable or in code."""
        return "home" in self.model_fields_set

    @property
    def kernel_cache(self) -> Path:
        """Where compiled kernels are kept, unless ``NUMBA_CACHE_DIR`` says otherwise.

        Who starts a server as an ordinary user without choosing a state folder gets a folder of their own.
        """
        if not self.home_is_given and not os.access(self.home, os.W_OK):
            return Path.home() / ".cache" / "gpupool" / "numba"
        return self.folders.cache / "numba"
