"""Process records: what runs, where it listens and who it is, one small JSON file a process.

Written by the process itself once it listens, removed when it ends. After a crash a record is stale; its start
time tells (see `core.processes`).
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from gpupool.core.files import read_json, remove_unfinished, write_private_json
from gpupool.core.processes import ProcessIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One process of the pool."""

    role: str
    instance_id: str
    process: ProcessIdentity
    host: str | None = None
    port: int | None = None

    def write(self, folder: Path) -> Path:
        """Keep the record as ``<role>.json`` in ``folder`` and return the path."""
        path = folder / f"{self.role}.json"
        remove_unfinished(path)
        write_private_json(path, asdict(self))
        return path

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the record kept at ``path``; None when there is none or it is not one."""
        value = read_json(path)
        if not isinstance(value, dict):
            return None
        try:
            return cls(**{**value, "process": ProcessIdentity(**value["process"])})
        except (TypeError, KeyError):
            return None

    @property
    def url(self) -> str | None:
        """``http://host:port``, or None for a process that does not listen."""
        if self.host is None or self.port is None:
            return None
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"
