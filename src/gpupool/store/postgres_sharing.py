"""What controls on one PostgreSQL database share: lease, living replicas, who was heard, used nonces.

Plain statements, each a transaction of its own, on connections of their own: none takes the writers' lock, so a writer
that is paused for good costs nobody the lease. Every moment is the server's clock. Rows are written in the order of
their keys, so that two controls that note the same ones never wait for each other in a circle.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from gpupool.core.errors import ConflictError
from gpupool.fleet.ports.sharing import Entered, Entry, Hearing, Replica, SeenReplica
from gpupool.store.faults import storage_error
from gpupool.store.leasing import LEADER
from gpupool.store.postgres import connect
from gpupool.store.postgres_url import PostgresUrl

LEASE_SECONDS: Final = 6.0
"""How long a lease is good without being renewed."""
ALIVE_SECONDS: Final = 6.0
"""A control that has not said that it lives for longer counts as gone."""
ANSWER_SECONDS: Final = 3.0
"""How long a statement may take: a server that does not answer must not outlast the lease."""
KEPT_SECONDS: Final = 86_400.0
_DURABILITY: Final = {"synchronous_commit": "off"}
"""What a crash of the server may lose here is half a second of signs of life."""
# Written out and not put together, so that nobody has to look twice at what goes into a statement.
_LEAD: Final = """
INSERT INTO leases AS held (name, holder, epoch, until)
VALUES ($1, $2, 1, extract(epoch FROM clock_timestamp()) + $3::float8)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until,
    epoch = held.epoch + CASE WHEN held.holder = excluded.holder THEN 0 ELSE 1 END
WHERE held.holder = excluded.holder OR held.until < extract(epoch FROM clock_timestamp())
RETURNING epoch
"""
_RESIGN: Final = "UPDATE leases SET until = 0 WHERE name = $1 AND holder = $2"
_SAY: Final = """
INSERT INTO replicas (instance_id, url, host, version, started, renewed)
VALUES ($1, $2, $3, $4, extract(epoch FROM clock_timestamp()), extract(epoch FROM clock_timestamp()))
ON CONFLICT (instance_id) DO UPDATE SET renewed = excluded.renewed
"""
_GO: Final = "DELETE FROM replicas WHERE instance_id = $1"
_CLEAR: Final = """
DELETE FROM replicas WHERE url = $1 OR renewed < extract(epoch FROM clock_timestamp()) - $2::float8
"""
_OTHERS: Final = """
SELECT instance_id, url FROM replicas WHERE renewed >= extract(epoch FROM clock_timestamp()) - $1::float8
"""
_KEEP: Final = """
INSERT INTO leases AS held (name, holder, epoch, until)
VALUES ($1, $2, 1, extract(epoch FROM clock_timestamp()) + $3::float8)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until, epoch = held.epoch + 1
"""
_HELD: Final = "SELECT holder FROM leases WHERE name = $1"
_LEFT: Final = "SELECT until - extract(epoch FROM clock_timestamp())::float8 FROM leases WHERE name = $1"
_KEYS: Final = "keys"
_SETTLING: Final = "settling"
_REPLICAS: Final = """
SELECT r.instance_id, r.url, r.host, r.version, now.s - r.started, now.s - r.renewed, l.holder IS NOT NULL
FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS s) AS now
CROSS JOIN replicas AS r
LEFT JOIN leases AS l ON l.name = $1 AND l.holder = r.instance_id AND l.until >= now.s
WHERE r.renewed >= now.s - $2::float8 ORDER BY r.started, r.instance_id
"""
_NOTE: Final = """
INSERT INTO heard AS known (subject, replica, linked, since, at)
SELECT subject, $1, linked, extract(epoch FROM clock_timestamp()), extract(epoch FROM clock_timestamp())
FROM unnest($2::text[], $3::bool[]) AS given (subject, linked)
ON CONFLICT (subject) DO UPDATE SET at = excluded.at,
    linked = excluded.linked OR (known.linked AND known.replica <> excluded.replica),
    replica = CASE WHEN known.linked AND NOT excluded.linked THEN known.replica ELSE excluded.replica END
"""
_UNLINK: Final = "UPDATE heard SET linked = false WHERE replica = $1 AND subject = ANY($2::text[])"
_HEARD: Final = """
SELECT h.subject, now.s - h.at, now.s - h.since, h.replica, h.linked AND r.instance_id IS NOT NULL
FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS s) AS now
CROSS JOIN heard AS h
LEFT JOIN replicas AS r ON r.instance_id = h.replica AND r.renewed >= now.s - $1::float8
WHERE h.at >= now.s - $2::float8
"""
_FORGET_HEARD: Final = "DELETE FROM heard WHERE at < extract(epoch FROM clock_timestamp()) - $1::float8"
_ADMIT: Final = """
INSERT INTO nonces (node_id, nonce, stamp) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
ON CONFLICT DO NOTHING RETURNING node_id, nonce, stamp
"""
_FORGET: Final = "DELETE FROM nonces WHERE stamp < $1"


class PostgresSharing:
    """`fleet.ports.sharing.Sharing` on a migrated PostgreSQL database."""

    def __init__(self, where: PostgresUrl, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._lease_seconds = lease_seconds
        self._line, self._nonces = _Line(where), _Line(where)

    async def enter(self, entry: Entry) -> Entered:
        """Count as living from now on."""
        me = entry.me
        async with self._line.connected() as connection, connection.transaction():
            # Of two that start at once, the second must see the first.
            await connection.execute("LOCK TABLE replicas IN SHARE ROW EXCLUSIVE MODE")
            if entry.predecessor is not None:
                await connection.execute(_GO, entry.predecessor)
                await connection.execute(_RESIGN, LEADER, entry.predecessor)
            await connection.execute(_CLEAR, me.url, KEPT_SECONDS)
            others = {row[0]: row[1] for row in await connection.fetch(_OTHERS, ALIVE_SECONDS)}
            if me.instance_id in others:
                raise ConflictError(
                    f"The control at {others[me.instance_id]} has the instance id {me.instance_id} too.",
                    remedy="Give each control an id of its own in GPUPOOL_INSTANCE_ID, or none.",
                )
            if others:
                await self._check_keys(connection, entry.keys, sorted(others.values()))
            else:
                await connection.execute(_KEEP, _KEYS, entry.keys, 0.0)
                await connection.execute(_KEEP, _SETTLING, me.instance_id, entry.settle_seconds)
                await connection.execute(_FORGET_HEARD, KEPT_SECONDS)
            await connection.execute(_SAY, me.instance_id, me.url, me.host, me.version)
            settling = await connection.fetchval(_LEFT, _SETTLING)
        return Entered(first=not others, settling=max(0.0, settling or 0.0))

    async def _check_keys(
        self, connection: "asyncpg.Connection[Any]", keys: str, others: Sequence[str]
    ) -> None:
        if await connection.fetchval(_HELD, _KEYS) != keys:
            raise ConflictError(
                f"The keys of this control are not those of {', '.join(others)}, which works on the same database.",
                remedy="Copy keys/seal.key, keys/operator.token, keys/service.token and keys/join.token of that one's"
                " state folder into the state folder of this one.",
            )

    async def renew(self, me: Replica) -> None:
        """Say that this control lives."""
        async with self._line.connected() as connection:
            await connection.execute(_SAY, me.instance_id, me.url, me.host, me.version)

    async def leave(self, me: Replica) -> None:
        """Stop counting as living, and give the lease back."""
        async with self._line.connected() as connection:
            await connection.execute(_RESIGN, LEADER, me.instance_id)
            await connection.execute(_GO, me.instance_id)

    async def replicas(self) -> Sequence[SeenReplica]:
        """Return the controls that live, and those that ended without a word within the last day; oldest first."""
        async with self._line.connected() as connection:
            rows = await connection.fetch(_REPLICAS, LEADER, KEPT_SECONDS)
        return [
            SeenReplica(
                replica=Replica(**dict(list(row.items())[:4])), up=row[4], silent=row[5], leads=row[6]
            )
            for row in rows
        ]

    async def lead(self, holder: str) -> int | None:
        """Take the lease where nobody holds it, or renew it; return its epoch, None where another holds it."""
        async with self._line.connected() as connection:
            epoch = await connection.fetchval(_LEAD, LEADER, holder, self._lease_seconds)
        return None if epoch is None else int(epoch)

    async def note_heard(self, replica: str, subjects: Mapping[str, bool]) -> None:
        """Note that these were heard just now; the value says whether they listen for commands here."""
        names = sorted(subjects)
        async with self._line.connected() as connection:
            await connection.execute(_NOTE, replica, names, [subjects[name] for name in names])

    async def note_unlinked(self, replica: str, subjects: Collection[str]) -> None:
        """Note that these do not listen for commands here any more."""
        async with self._line.connected() as connection:
            await connection.execute(_UNLINK, replica, sorted(subjects))

    async def heard(self, within: float | None = None) -> Mapping[str, Hearing]:
        """Return everybody who was heard in the last ``within`` seconds (a day), by any control."""
        seconds = KEPT_SECONDS if within is None else within
        async with self._line.connected() as connection:
            rows = await connection.fetch(_HEARD, ALIVE_SECONDS, seconds)
        return {row[0]: Hearing(silent=row[1], known=row[2], replica=row[3], linked=row[4]) for row in rows}

    async def admit(self, nonces: Collection[tuple[str, str, int]]) -> Collection[tuple[str, str, int]]:
        """Remember nonces (node, nonce, Unix time) and return those that no control has taken before."""
        columns = list(zip(*sorted(set(nonces)), strict=True))
        async with self._nonces.connected() as connection:
            rows = await connection.fetch(_ADMIT, *map(list, columns)) if columns else []
        return {(row[0], row[1], row[2]) for row in rows}

    async def forget_nonces(self, before: int) -> None:
        """Forget nonces whose time (Unix) is past, since that alone keeps them out."""
        async with self._line.connected() as connection:
            await connection.execute(_FORGET, before)

    async def close(self) -> None:
        """Give back every connection."""
        for line in (self._line, self._nonces):
            await line.close()


class _Line:
    """One connection, used by one caller at a time and opened anew where it was lost."""

    def __init__(self, where: PostgresUrl) -> None:
        self._where = where
        self._connection: asyncpg.Connection[Any] | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["asyncpg.Connection[Any]"]:
        """Lend the connection; StorageError for whatever the server, or the way to it, refuses."""
        async with self._turn:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(
                        self._where, _DURABILITY, statement_seconds=ANSWER_SECONDS
                    )
                yield self._connection
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                # Whatever state it is in, the next caller gets a new one.
                self._give_up()
                raise storage_error(error) from error

    async def close(self) -> None:
        """Give the connection back."""
        async with self._turn:
            self._give_up()

    def _give_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
