"""Node life: region, announced model, what a person has pinned, removal; and tokens that let nodes join.

A removed node stays for the history of its placements, so name and key are unique among the others only.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_LIVING = sa.text("state <> 'removed'")


def upgrade() -> None:
    """Let nodes be removed, and keep join tokens."""
    with op.batch_alter_table("nodes") as nodes:
        nodes.add_column(sa.Column("region", sa.String()))
        nodes.add_column(sa.Column("short_ref", sa.String()))
        nodes.add_column(sa.Column("pinned", sa.JSON(), server_default=sa.text("'[]'"), nullable=False))
        nodes.add_column(sa.Column("removed_at", sa.DateTime(timezone=True)))
        nodes.drop_constraint("uq_nodes_name", type_="unique")
        nodes.drop_constraint("uq_nodes_public_key", type_="unique")
    for column in ("name", "public_key"):
        op.create_index(
            f"uq_nodes_living_{column}",
            "nodes",
            [column],
            unique=True,
            sqlite_where=_LIVING,
            postgresql_where=_LIVING,
        )
    op.create_index("ix_nodes_public_key", "nodes", ["public_key"])
    _join_tokens()


def _join_tokens() -> None:
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("node_name", sa.String()),
        sa.Column("hourly_usd", sa.Float()),
        sa.Column("region", sa.String()),
        sa.Column("short_ref", sa.String()),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.Column("created_by", sa.String()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_join_tokens"),
        sa.UniqueConstraint("digest", name="uq_join_tokens_digest"),
    )
    op.create_index("ix_join_tokens_created_at_id", "join_tokens", ["created_at", "id"])
    op.create_index("ix_join_tokens_expires_at", "join_tokens", ["expires_at"])


def downgrade() -> None:
    """Go back: a removed node becomes an unreachable one under its id, since the old schema knows no removal."""
    op.drop_table("join_tokens")
    for name in ("uq_nodes_living_name", "uq_nodes_living_public_key", "ix_nodes_public_key"):
        op.drop_index(name, "nodes")
    op.execute(
        "UPDATE nodes SET name = id, public_key = 'removed ' || id, state = 'unreachable', session = NULL"
        " WHERE state = 'removed'"
    )
    with op.batch_alter_table("nodes") as nodes:
        for column in ("region", "short_ref", "pinned", "removed_at"):
            nodes.drop_column(column)
        nodes.create_unique_constraint("uq_nodes_name", ["name"])
        nodes.create_unique_constraint("uq_nodes_public_key", ["public_key"])
