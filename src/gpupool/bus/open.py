"""Which bus a pool has: Redis where an operator gives one, else PostgreSQL's own, else this process."""

from gpupool.bus.memory import MemoryBus
from gpupool.core.errors import EnvironmentProblemError
from gpupool.fleet.ports.bus import Bus


def open_bus(redis_url: str | None, postgres_dsn: str | None) -> Bus:
    """Return the bus; nothing is connected yet, and a server that is away is no error.

    Raises InvalidInputError for a Redis URL that is none, EnvironmentProblemError where its client is not installed.
    """
    if redis_url is not None:
        try:
            from gpupool.bus.redis import RedisBus
        except ModuleNotFoundError as error:
            raise EnvironmentProblemError(
                f"GPUPOOL_REDIS_URL needs {error.name}, which is not installed.",
                remedy="Install it: pip install 'gpupool[fleet]'.",
            ) from error
        return RedisBus(redis_url)
    if postgres_dsn is not None:
        from gpupool.bus.notify import NotifyBus

        return NotifyBus(postgres_dsn)
    return MemoryBus()
