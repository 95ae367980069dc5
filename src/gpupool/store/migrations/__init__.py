"""The steps from one schema to the next; read by alembic as scripts, in `store.migrate` only."""
