"""The lineage of agents' cards, what agents are listed by, and the function that commits batches.

Code of before goes on: its writers call the function of before, which leaves the new columns alone.
A card that it stores has no place in the lineage; its hash is in the audit. Decision 0283.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0022"
down_revision = "0020"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the table, the columns, and the function that writes what 0016, 0020 and this one add."""
    execute_file("0022_agent_lineage.sql")
    execute_file("0022_commit_batch.sql")
