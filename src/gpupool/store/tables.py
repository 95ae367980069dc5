"""The tables, as SQLAlchemy sees them; the same for every database.

Core tables and no mapped classes: the domain already has its own types, and a row that becomes one directly costs
a fraction of an identity map. The migrations spell the schema out on their own; a test holds the two together.
"""

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
    UniqueConstraint,
    text,
)

METADATA: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """Aware moments in UTC, on databases that keep a time zone and on those that do not."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn any aware moment into UTC; ValueError for a naive one, whose meaning nobody knows."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment without time zone cannot be stored")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Give SQLite's naive moments back their UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


NODES: Final = Table(
    "nodes",
    METADATA,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("public_key", String, nullable=False),
    Column("address", String, nullable=False),
    Column("state", String, nullable=False),
    Column("locked", Boolean, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("hourly_usd", Float),
    Column("runtimes", JSON, nullable=False),
    Column("session", String),
    Column("boot_id", String, nullable=False),
    Column("joined_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    # The highest command number ever given to this node; it outlives the commands, so no number comes twice.
    Column("command_seq", Integer, nullable=False, server_default=text("0")),
    Column("region", String),
    Column("short_ref", String),
    Column("pinned", JSON, nullable=False, server_default=text("'[]'")),
    Column("removed_at", UtcDateTime),
    Index(None, "joined_at", "id"),
    Index(None, "public_key"),
    # Name and key are free again once their node is removed.
    *(
        Index(
            f"uq_nodes_living_{column}",
            column,
            unique=True,
            sqlite_where=text("state <> 'removed'"),
            postgresql_where=text("state <> 'removed'"),
        )
        for column in ("name", "public_key")
    ),
)

JOIN_TOKENS: Final = Table(
    "join_tokens",
    METADATA,
    Column("id", String, primary_key=True),
    Column("digest", String, nullable=False, unique=True),
    Column("node_name", String),
    Column("hourly_usd", Float),
    Column("region", String),
    Column("short_ref", String),
    Column("uses", Integer, nullable=False),
    Column("used", Integer, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("created_by", String),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Index(None, "created_at", "id"),
    Index(None, "expires_at"),
)

API_TOKENS: Final = Table(
    "api_tokens",
    METADATA,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("digest", String, nullable=False, unique=True),
    Column("role", String, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("created_by", String),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Index(None, "created_at", "id"),
)

HOTKEYS: Final = Table(
    "hotkeys",
    METADATA,
    Column("address", String, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("role", String, nullable=False),
    Column("created_by", String),
    Column("created_at", UtcDateTime, nullable=False),
)

DEVICES: Final = Table(
    "devices",
    METADATA,
    Column("id", String, primary_key=True),
    Column("node_id", ForeignKey("nodes.id"), nullable=False),
    Column("kind", String, nullable=False),
    Column("name", String, nullable=False),
    Column("position", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("short_ref", String),
    Column("failed_rules", JSON, nullable=False),
    Column("hourly_usd", Float),
    Column("proof", String, nullable=False),
    Column("stand_in", Boolean, nullable=False),
    Column("present", Boolean, nullable=False),
    Index(None, "node_id", "position", "id"),
)

WORKLOADS: Final = Table(
    "workloads",
    METADATA,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("wanted", Integer, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("not_before", UtcDateTime),
    Column("why", String),
    Column("created_at", UtcDateTime, nullable=False),
    Index(None, "created_at", "id"),
    # A name is free again once its workload is deleted. SQLite uses the index only for the very same words.
    Index(
        "uq_workloads_living_name",
        "name",
        unique=True,
        sqlite_where=text("deleted = 0"),
        postgresql_where=text("NOT deleted"),
    ),
)

PLACEMENTS: Final = Table(
    "placements",
    METADATA,
    Column("id", String, primary_key=True),
    Column("workload_id", ForeignKey("workloads.id"), nullable=False),
    Column("workload_version", Integer, nullable=False),
    Column("node_id", ForeignKey("nodes.id"), nullable=False),
    Column("state", String, nullable=False),
    # Follows from the state; a column of its own so that the few live rows are found among many ended ones.
    Column("live", Boolean, nullable=False),
    Column("reason", String),
    Column("port", Integer),
    Column("restarts", Integer, nullable=False),
    Column("rate", Float),
    Column("created_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Index(None, "created_at", "id"),
    Index(None, "live", "created_at", "id"),
    Index(None, "node_id", "created_at", "id"),
    Index(None, "node_id", "live", "created_at", "id"),
    Index(None, "workload_id", "created_at", "id"),
    Index(None, "workload_id", "live", "created_at", "id"),
)

CLAIMS: Final = Table(
    "claims",
    METADATA,
    Column("placement_id", ForeignKey("placements.id"), primary_key=True),
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("mode", String, nullable=False),
    Column("mib", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    CheckConstraint("mib >= 0", name="mib"),
    Index(None, "device_id", "placement_id"),
)

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("id", String, primary_key=True),
    Column("workload_id", ForeignKey("workloads.id"), nullable=False),
    Column("placement_id", ForeignKey("placements.id"), index=True),
    Column("state", String, nullable=False),
    Column("reason", String),
    Column("created_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Index(None, "created_at", "id"),
    Index(None, "workload_id", "created_at", "id"),
)

EVENTS: Final = Table(
    "events",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("kind", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("data", JSON, nullable=False),
    # Who asked for it, as in the data; None where the pool acted by itself, which most events tell of.
    Column("actor", String),
    Index(None, "subject", "seq"),
    Index(
        "ix_events_asked",
        "seq",
        "actor",
        sqlite_where=text("actor IS NOT NULL"),
        postgresql_where=text("actor IS NOT NULL"),
    ),
    # AUTOINCREMENT: a number is never given again, even after the newest events were removed.
    sqlite_autoincrement=True,
)

COMMANDS: Final = Table(
    "commands",
    METADATA,
    Column("node_id", ForeignKey("nodes.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("payload", JSON, nullable=False),
)

SEEN_KEYS: Final = Table(
    "seen_keys",
    METADATA,
    Column("scope", String, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("key", String, nullable=False),
    UniqueConstraint("scope", "key"),
)

ALARMS: Final = Table(
    "alarms",
    METADATA,
    Column("rule", String, primary_key=True),
    Column("subject", String, primary_key=True),
    Column("label", String, nullable=False),
    Column("severity", String, nullable=False),
    Column("why", String, nullable=False),
    Column("since", UtcDateTime, nullable=False),
    Column("until", UtcDateTime),
    Column("told_at", UtcDateTime),
)

SILENCES: Final = Table(
    "silences",
    METADATA,
    Column("id", String, primary_key=True),
    Column("pattern", String, nullable=False),
    Column("until", UtcDateTime, nullable=False),
    Column("why", String, nullable=False),
    Column("by", String, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

# What controls on one database share. Moments here are seconds since 1970 by the clock of the database, the only one
# that all of them have in common.

LEASES: Final = Table(
    "leases",
    METADATA,
    Column("name", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("until", Float, nullable=False),
)

REPLICAS: Final = Table(
    "replicas",
    METADATA,
    Column("instance_id", String, primary_key=True),
    Column("url", String, nullable=False),
    Column("host", String, nullable=False),
    Column("version", String, nullable=False),
    Column("started", Float, nullable=False),
    Column("renewed", Float, nullable=False),
)

HEARD: Final = Table(
    "heard",
    METADATA,
    Column("subject", String, primary_key=True),
    Column("replica", String, nullable=False),
    Column("linked", Boolean, nullable=False),
    Column("since", Float, nullable=False),
    Column("at", Float, nullable=False),
)

NONCES: Final = Table(
    "nonces",
    METADATA,
    Column("node_id", String, primary_key=True),
    Column("nonce", String, primary_key=True),
    Column("stamp", BigInteger, nullable=False, index=True),
)
