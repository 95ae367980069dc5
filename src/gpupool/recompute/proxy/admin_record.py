"""How a command finds a running proxy: address and token of its admin interface, in a file only its owner reads.

The token is made anew at every start, so a file that a crash left behind opens nothing.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from gpupool.core.files import read_json, remove_unfinished, write_private_json

FILE: Final = "admin.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRecord:
    """One running proxy."""

    instance_id: str
    pid: int
    public_port: int
    """Where its clients connect."""
    host: str
    port: int
    """Where its admin interface listens."""
    token: str

    def write(self, folder: Path) -> None:
        """Keep the record in ``folder``, mode 0600."""
        remove_unfinished(folder / FILE)
        write_private_json(folder / FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the record kept in ``folder``; None when there is none, it cannot be read or it is not one."""
        try:
            value = read_json(folder / FILE)
        except OSError:
            return None  # a folder in its place, or a file of another user
        if not isinstance(value, dict):
            return None
        try:
            record = cls(**value)
        except TypeError:
            return None
        texts = (record.instance_id, record.host, record.token)
        numbers = (record.pid, record.public_port, record.port)
        valid = all(isinstance(text, str) for text in texts) and all(
            type(number) is int for number in numbers
        )
        return record if valid else None

    def remove(self, folder: Path) -> None:
        """Remove the record, unless a successor has written its own."""
        kept = self.read(folder)
        if kept is not None and kept.instance_id == self.instance_id:
            (folder / FILE).unlink(missing_ok=True)
