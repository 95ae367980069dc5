"""The border for errors: what the database or its driver raises leaves this package as one of ours.

A broken rule of the schema (a name taken, a parent missing) is a conflict with the present state; everything else
that a database can complain about is trouble with the store itself, and says what an operator can do about it.
"""

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import IntegrityError, SQLAlchemyError, StatementError

from gpupool.core.errors import ConflictError, StorageError

_BUSY: Final = ("database is locked", "database table is locked", "due to lock timeout")
_REMEDIES: Final = (
    (_BUSY, "Another process holds the database; end it, or look at what it does for so long."),
    (
        ("disk is full", "disk i/o error", "no space left"),
        "Free space on the disk of the data folder, or check its health.",
    ),
    (("readonly", "unable to open"), "Check that the data folder belongs to this user and is writable."),
    (
        ("malformed", "not a database"),
        "Restore the newest backup (`pool.db.backup-*` in the data folder), or move the file away to start anew.",
    ),
    (
        ("read-only transaction",),
        "The server takes no changes: name the primary where this is a standby, or look at default_transaction_read_only.",
    ),
    (
        ("too many clients", "too many connections", "remaining connection slots"),
        "Raise max_connections of PostgreSQL, or the limit of this user or database; a control needs up to 10.",
    ),
    (
        ("certificate", "no such file"),
        "Check the files that sslrootcert, sslcert and sslkey name, or the folder of the socket in host.",
    ),
    (
        ("permission denied",),
        "Let the user of GPUPOOL_DATABASE_URL own the database and its tables (`ALTER DATABASE … OWNER TO …`).",
    ),
    (
        ("password authentication", "no password supplied", 'role "', "no pg_hba.conf entry"),
        "Check user and password in GPUPOOL_DATABASE_URL, and whether the server lets this machine in (pg_hba.conf).",
    ),
    (
        ('database "',),
        "Make it: `createdb NAME` as a user who may, or correct its name in GPUPOOL_DATABASE_URL.",
    ),
    (
        (
            "connection was closed",
            "connection is closed",
            "shutting down",
            "starting up",
            "terminating connection",
        ),
        "Try again in a moment; where it stays so, look at the log of PostgreSQL.",
    ),
    (
        ("no such table", "no such column", "does not exist"),
        "Bring the database up to date: `python -m gpupool.store.migrate`.",
    ),
)
_CLASS: Final = re.compile(r"^<class '[^']*'>: ")
"""SQLAlchemy writes it before what asyncpg says."""


def is_busy(error: Exception) -> bool:
    """Tell whether another connection's lock is the only trouble, so that trying again helps."""
    return any(sign in str(error).lower() for sign in _BUSY)


def storage_error(error: Exception) -> StorageError:
    """Return the StorageError that tells a person about ``error``, without SQL and parameters (secrets!) in it."""
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    told = _told(cause)
    return StorageError(f"The database refused: {told}.", remedy=_remedy(told))


def refused_connection(where: str, error: Exception) -> StorageError:
    """Return the StorageError for a server at ``where`` that cannot be reached, or does not let us in."""
    told = _told(error)
    remedy = _remedy(told) or "Check that PostgreSQL runs there, and GPUPOOL_DATABASE_URL."
    return StorageError(f"The database {where} cannot be used: {told}.", remedy=remedy)


def _told(error: BaseException) -> str:
    """Return what an error says, without the values that PostgreSQL quotes in further lines."""
    first = str(error).partition("\n")[0]
    return _CLASS.sub("", first).rstrip(".") or type(error).__name__


def _remedy(told: str) -> str | None:
    return next((text for signs, text in _REMEDIES if any(sign in told.lower() for sign in signs)), None)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise ConflictError or StorageError in place of the database's own errors."""
    try:
        yield
    except IntegrityError as error:
        told = _told(error.orig) if error.orig is not None else "no reason given"
        raise ConflictError(f"The change breaks a rule of the store: {told}.") from error
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise storage_error(error) from error
