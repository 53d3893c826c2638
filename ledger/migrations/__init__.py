"""The history of the schema, for alembic; the DDL itself is in `sql`."""
