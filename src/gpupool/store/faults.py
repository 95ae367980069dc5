"""The border for errors: what the database or its driver raises leaves this package as one of ours.

A broken rule of the schema (a name taken, a parent missing) is a conflict with the present state; everything else
that a database can complain about is trouble with the store itself, and says what an operator can do about it.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import IntegrityError, SQLAlchemyError, StatementError

from gpupool.core.errors import ConflictError, StorageError

_BUSY: Final = ("database is locked", "database table is locked")
_REMEDIES: Final = (
    (_BUSY, "Another process holds the database; end it, or look at what it does for so long."),
    (("disk is full", "disk i/o error"), "Free space on the disk of the data folder, or check its health."),
    (("readonly", "unable to open"), "Check that the data folder belongs to this user and is writable."),
    (
        ("malformed", "not a database"),
        "Restore the newest backup (`pool.db.backup-*` in the data folder), or move the file away to start anew.",
    ),
    (
        ("no such table", "no such column"),
        "Bring the database up to date: `python -m gpupool.store.migrate`.",
    ),
)


def is_busy(error: Exception) -> bool:
    """Tell whether another connection's lock is the only trouble, so that trying again helps."""
    return any(sign in str(error).lower() for sign in _BUSY)


def storage_error(error: Exception) -> StorageError:
    """Return the StorageError that tells a person about ``error``, without SQL and parameters (secrets!) in it."""
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    told = str(cause) or type(cause).__name__
    remedy = next((text for signs, text in _REMEDIES if any(sign in told.lower() for sign in signs)), None)
    return StorageError(f"The database refused: {told}.", remedy=remedy)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise ConflictError or StorageError in place of the database's own errors."""
    try:
        yield
    except IntegrityError as error:
        raise ConflictError(f"The change breaks a rule of the store: {error.orig}.") from error
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise storage_error(error) from error
