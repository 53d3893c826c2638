"""Members and shards in the place of owners, and the function that commits a batch with them.

Code of before cannot go on: it names an owner in every row of a workflow. Every shard is free
afterwards, so the first members of the new code take all unfinished work.
"""

from __future__ import annotations

from ledger.migrations.steps import (
    create_index_concurrently,
    execute_file,
    refuse_downgrade,
    require_code_version,
)

revision = "0010"
down_revision = "0009"
phase = "post"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Build the index of pages, replace the tables of owners, ask for code that knows shards."""
    create_index_concurrently(
        "workflow_deadline", "callboard.workflow (deadline_ms, id) WHERE completed_ms IS NULL"
    )
    execute_file("0010_shards.sql")
    execute_file("0010_commit_batch.sql")
    require_code_version(2)
