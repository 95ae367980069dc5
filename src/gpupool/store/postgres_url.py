"""Where a PostgreSQL database is: the URL an operator gives, checked, and a name for it without its password."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gpupool.core.errors import InvalidInputError

VARIABLE: Final = "GPUPOOL_DATABASE_URL"
_EXAMPLE: Final = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"
_SCHEMES: Final = frozenset({"postgresql", "postgres"})
_OPTIONS: Final = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "host"})


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A PostgreSQL database; its text form has no password."""

    url: URL

    def __str__(self) -> str:
        port = f":{self.url.port}" if self.url.port else ""
        user = f"{self.url.username}@" if self.url.username else ""
        return f"postgresql://{user}{self.url.host or 'local'}{port}/{self.url.database}"

    __repr__ = __str__

    @property
    def dsn(self) -> str:
        """What asyncpg takes, with the password."""
        return self.url.render_as_string(hide_password=False)


def parse_postgres_url(text: str) -> PostgresUrl:
    """Return the database at a ``postgresql://`` URL.

    Host, port, user and password may be left to the ``PG*`` variables and the password file, as libpq has it.
    Raises InvalidInputError, never with the password in it, for anything else.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise _wrong("is not a URL") from error
    if url.drivername not in _SCHEMES:
        raise _wrong(f"begins with {url.drivername}:")
    if not url.database:
        raise _wrong("names no database")
    if url.port is not None and not 0 < url.port < 65536:
        raise _wrong(f"names the port {url.port}, which is none")
    unknown = sorted(set(url.query) - _OPTIONS)
    if unknown:
        raise _wrong(f"has options that are not known here ({', '.join(unknown)})")
    return PostgresUrl(url.set(drivername="postgresql"))


def _wrong(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{VARIABLE} {what}.", remedy=f"Give it as {_EXAMPLE}, or leave it out for SQLite."
    )
