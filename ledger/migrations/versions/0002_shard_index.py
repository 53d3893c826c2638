"""Unfinished workflows by shard: eight random bits of the id, from which a member restores its own.

Built beside running writers, so outside a transaction.
"""

from __future__ import annotations

from ledger.migrations.steps import create_index_concurrently

revision = "0002"
down_revision = "0001"
phase = "pre"


def upgrade() -> None:
    """Build the index."""
    create_index_concurrently(
        "workflow_shard",
        "callboard.workflow ((get_byte(uuid_send(id), 7))) WHERE completed_ms IS NULL",
    )


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
