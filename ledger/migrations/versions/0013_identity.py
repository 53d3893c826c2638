"""The keys that agents had before, and the function that commits a batch with them.

Code of before goes on: it writes an agent's current key where it did. Decision 0230.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0013"
down_revision = "0012"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add what is remembered of agents' keys, and the function of the next version."""
    execute_file("0013_identity.sql")
    execute_file("0013_commit_batch.sql")
