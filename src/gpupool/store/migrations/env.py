"""What alembic runs: the steps of one upgrade, in one transaction, on the connection it is handed.

There is no offline mode and no settings file: `store.migrate` is the only caller.
"""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    # SQLite's schema changes are transactional; alembic does not assume so on its own.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
