"""Hotkeys that operators sign with, and who asked for what, so that an audit need not read every event."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Keep hotkeys, and who caused each event, of the events there are, too."""
    op.create_table(
        "hotkeys",
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_by", sa.String()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("address", name="pk_hotkeys"),
        sa.UniqueConstraint("name", name="uq_hotkeys_name"),
    )
    op.add_column("events", sa.Column("actor", sa.String()))
    events = sa.table("events", sa.column("data", sa.JSON()), sa.column("actor", sa.String()))
    told = events.c.data["by"].as_string()
    op.execute(events.update().where(told.is_not(None)).values(actor=told))
    asked = sa.text("actor IS NOT NULL")
    op.create_index("ix_events_asked", "events", ["seq", "actor"], sqlite_where=asked, postgresql_where=asked)


def downgrade() -> None:
    """Go back: nobody is let in by a hotkey then; events still tell who asked, in their data."""
    op.drop_index("ix_events_asked", table_name="events")
    op.drop_column("events", "actor")
    op.drop_table("hotkeys")
