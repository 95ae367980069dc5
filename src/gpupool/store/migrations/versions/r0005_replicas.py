"""Several controls on one database: who leads, who lives, whom each has heard, and which nonces were used."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Keep what controls share."""
    op.create_table(
        "leases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "replicas",
        sa.Column("instance_id", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("renewed", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("instance_id", name="pk_replicas"),
    )
    op.create_table(
        "heard",
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("replica", sa.String(), nullable=False),
        sa.Column("linked", sa.Boolean(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_heard"),
    )
    op.create_table(
        "nonces",
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("nonce", sa.String(), nullable=False),
        sa.Column("stamp", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", "nonce", name="pk_nonces"),
    )
    op.create_index("ix_nonces_stamp", "nonces", ["stamp"])


def downgrade() -> None:
    """Go back: one control works on a database then."""
    for name in ("nonces", "heard", "replicas", "leases"):
        op.drop_table(name)
