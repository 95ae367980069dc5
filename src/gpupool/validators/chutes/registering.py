"""GPUs as a validator wants them: each with its driver's facts, and where it answers challenges.

Source: chutes.md section 2.2, ``POST /nodes/``.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from gpupool.core.errors import InvalidInputError
from gpupool.fleet.ports.validator import GpuFacts

MOST_GPUS: Final = 10
PORTS: Final = range(80, 65_536)
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_MORE: Final = ("major", "minor", "sxm", "concurrent_kernels", "ecc")


def plain_uuid(uuid: str) -> str:
    """Return a GPU's uuid as validators write it: 32 hexadecimal digits; InvalidInputError for what is none."""
    plain = uuid.casefold().removeprefix("gpu-").replace("-", "")
    if not _UUID.fullmatch(plain):
        raise InvalidInputError(f"{uuid[:80]!r} is no GPU's uuid.", remedy="A stand-in cannot be registered.")
    return plain


def registration_body(
    gpus: Sequence[GpuFacts], *, server_id: str, server_name: str, host: str, port: int
) -> dict[str, Any]:
    """Return the body that makes GPUs known; InvalidInputError for what no validator would take."""
    if not 1 <= len(gpus) <= MOST_GPUS:
        raise InvalidInputError(f"A server is registered with 1 to {MOST_GPUS} GPUs, not {len(gpus)}.")
    if port not in PORTS:
        raise InvalidInputError(
            f"A server is verified at a port from {PORTS.start} to {PORTS[-1]}, not {port}."
        )
    uuids = [plain_uuid(gpu.uuid) for gpu in gpus]
    if len(set(uuids)) != len(uuids):
        raise InvalidInputError("The same GPU is named twice.")
    nodes = [
        {
            "uuid": uuid,
            "name": gpu.name,
            "memory": gpu.memory_bytes,
            "processors": gpu.processors,
            "clock_rate": gpu.clock_khz,
            "max_threads_per_processor": gpu.max_threads_per_processor,
            "device_index": gpu.index,
            "gpu_identifier": gpu.short_ref,
            "verification_host": host,
            "verification_port": port,
            **{key: gpu.facts[key] for key in _MORE if key in gpu.facts},
        }
        for uuid, gpu in zip(uuids, gpus, strict=True)
    ]
    return {"server_id": server_id, "server_name": server_name, "nodes": nodes}
