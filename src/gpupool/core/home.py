"""The state folder (``GPUPOOL_HOME``) and what lies where in it; everything in it is readable by its owner only."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.core.files import ensure_private_dir

VARIABLE: Final = "GPUPOOL_HOME"
MOVED: Final = "moved"
"""What `Home.moved` says once the file is no longer the state."""
DEFAULT: Final = Path("/var/lib/gpupool")


@dataclass(frozen=True, slots=True)
class Home:
    """The layout of one state folder."""

    root: Path

    @classmethod
    def from_environment(cls) -> "Home":
        """Return the folder named by ``GPUPOOL_HOME``, else ``/var/lib/gpupool``."""
        return cls(Path(os.environ.get(VARIABLE) or DEFAULT).absolute())

    def prepare(self) -> "Home":
        """Make the folders that are missing, mode 0700; raise EnvironmentProblemError where that fails."""
        for folder in (self.root, self.keys, self.data, self.run, self.logs, self.agent, self.cache):
            ensure_private_dir(folder)
        return self

    @property
    def keys(self) -> Path:
        """Tokens and private keys."""
        return self.root / "keys"

    @property
    def operator_token(self) -> Path:
        """Bearer token that may do everything."""
        return self.keys / "operator.token"

    @property
    def service_token(self) -> Path:
        """Bearer token of gateway and proxy: may read the endpoints feed and nothing else."""
        return self.keys / "service.token"

    @property
    def join_token(self) -> Path:
        """Bearer token with which an agent makes itself known."""
        return self.keys / "join.token"

    @property
    def seal_key(self) -> Path:
        """Key that seals what workloads are given as environment, where the database holds it."""
        return self.keys / "seal.key"

    @property
    def data(self) -> Path:
        """The database."""
        return self.root / "data"

    @property
    def database(self) -> Path:
        """The SQLite file of the embedded store."""
        return self.data / "pool.db"

    @property
    def moved(self) -> Path:
        """Where the state is, since it left the file; see `gpupool database move`."""
        return self.data / "moved.json"

    @property
    def run(self) -> Path:
        """Records of running processes; stale after a crash, so never trusted without their start time."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """Logs of our own processes."""
        return self.root / "logs"

    @property
    def alerts(self) -> Path:
        """Whom to tell when something dies; written by a person, and secret."""
        return self.root / "alerts.yaml"

    @property
    def agent(self) -> Path:
        """The agent's key and its run records."""
        return self.root / "agent"

    @property
    def cache(self) -> Path:
        """What may be deleted and comes back: compiled kernels, models."""
        return self.root / "cache"
