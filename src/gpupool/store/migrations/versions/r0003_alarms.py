"""Alarms that people are, or are to be, told of; and silences."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Keep alarms and silences."""
    op.create_table(
        "alarms",
        sa.Column("rule", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("severity", sa.String(), nullable=False),
        sa.Column("why", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True)),
        sa.Column("told_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("rule", "subject", name="pk_alarms"),
    )
    op.create_table(
        "silences",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("pattern", sa.String(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("why", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_silences"),
    )


def downgrade() -> None:
    """Go back: nothing but what is told of is lost."""
    op.drop_table("silences")
    op.drop_table("alarms")
