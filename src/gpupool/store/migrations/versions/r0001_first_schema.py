"""The first schema.

Spelled out rather than taken from `store.tables`, which moves on while this step stays what it was.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table, parents first."""
    _nodes()
    _devices()
    _workloads()
    _placements()
    _claims()
    _jobs()
    _events()
    _commands()
    _seen_keys()


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("public_key", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("locked", sa.Boolean(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("hourly_usd", sa.Float()),
        sa.Column("runtimes", sa.JSON(), nullable=False),
        sa.Column("session", sa.String()),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("joined_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("command_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
        sa.UniqueConstraint("name", name="uq_nodes_name"),
        sa.UniqueConstraint("public_key", name="uq_nodes_public_key"),
    )
    op.create_index("ix_nodes_joined_at_id", "nodes", ["joined_at", "id"])


def _devices() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("short_ref", sa.String()),
        sa.Column("failed_rules", sa.JSON(), nullable=False),
        sa.Column("hourly_usd", sa.Float()),
        sa.Column("proof", sa.String(), nullable=False),
        sa.Column("stand_in", sa.Boolean(), nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_devices_node_id"),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
    )
    op.create_index("ix_devices_node_id_position_id", "devices", ["node_id", "position", "id"])


def _workloads() -> None:
    op.create_table(
        "workloads",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True)),
        sa.Column("why", sa.String()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workloads"),
    )
    op.create_index("ix_workloads_created_at_id", "workloads", ["created_at", "id"])
    op.create_index(
        "uq_workloads_living_name",
        "workloads",
        ["name"],
        unique=True,
        sqlite_where=sa.text("deleted = 0"),
        postgresql_where=sa.text("NOT deleted"),
    )


def _placements() -> None:
    op.create_table(
        "placements",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workload_id", sa.String(), nullable=False),
        sa.Column("workload_version", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String()),
        sa.Column("port", sa.Integer()),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("rate", sa.Float()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_placements_node_id"),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_placements_workload_id"),
        sa.PrimaryKeyConstraint("id", name="pk_placements"),
    )
    op.create_index("ix_placements_created_at_id", "placements", ["created_at", "id"])
    for columns in (
        ["live", "created_at", "id"],
        ["node_id", "created_at", "id"],
        ["node_id", "live", "created_at", "id"],
        ["workload_id", "created_at", "id"],
        ["workload_id", "live", "created_at", "id"],
    ):
        op.create_index(f"ix_placements_{'_'.join(columns)}", "placements", columns)


def _claims() -> None:
    op.create_table(
        "claims",
        sa.Column("placement_id", sa.String(), nullable=False),
        sa.Column("device_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("mib", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.CheckConstraint("mib >= 0", name="ck_claims_mib"),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name="fk_claims_device_id"),
        sa.ForeignKeyConstraint(["placement_id"], ["placements.id"], name="fk_claims_placement_id"),
        sa.PrimaryKeyConstraint("placement_id", "device_id", name="pk_claims"),
    )
    op.create_index("ix_claims_device_id_placement_id", "claims", ["device_id", "placement_id"])


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workload_id", sa.String(), nullable=False),
        sa.Column("placement_id", sa.String()),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["placement_id"], ["placements.id"], name="fk_jobs_placement_id"),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_jobs_workload_id"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_placement_id", "jobs", ["placement_id"])
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_workload_id_created_at_id", "jobs", ["workload_id", "created_at", "id"])


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_subject_seq", "events", ["subject", "seq"])


def _commands() -> None:
    op.create_table(
        "commands",
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_commands_node_id"),
        sa.PrimaryKeyConstraint("node_id", "seq", name="pk_commands"),
    )


def _seen_keys() -> None:
    op.create_table(
        "seen_keys",
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "position", name="pk_seen_keys"),
        sa.UniqueConstraint("scope", "key", name="uq_seen_keys_scope_key"),
    )
