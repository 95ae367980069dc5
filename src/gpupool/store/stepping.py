"""Running the steps of a migration with alembic, on a connection of whichever database."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection

from gpupool.core.errors import StorageError


def run_steps(connection: Connection, scripts: Path, where: str, to: str = "head") -> None:
    """Bring the database to a revision in one transaction; StorageError where the steps do not fit it."""
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, to)
    except CommandError as error:
        raise StorageError(f"The steps to migrate {where} do not fit it: {error}.") from error
