"""What differs from one database to the next: its connections, and how a writer gets its turn.

Everything else (statements, rows, rules) is the same for all of them.
"""

from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


class Database(Protocol):
    """One migrated database, as `store.sql_store.SqlStore` uses it."""

    readers: AsyncEngine
    """Connections that cannot write; a transaction of theirs sees one state until it ends."""
    writers: AsyncEngine
    """One connection."""

    async def begin_writing(self, connection: AsyncConnection) -> None:
        """Begin a transaction that no other writer, of this process or of another, runs beside.

        Raises StorageError when others keep their turn for too long.
        """
        ...

    async def forget_overwritten(self) -> None:
        """Rid the database of what was overwritten in it, as far as it can be told to; StorageError where that fails."""
        ...
