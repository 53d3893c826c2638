"""The history of the schema, for alembic; the SQL of the first release is in `baseline`."""
