"""Alembic's environment: it uses the connection that `ledger.migrate` provides."""

from __future__ import annotations

from alembic import context

from ledger.schema import SCHEMA, metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
