"""Whose an agent's DID is, and what shows it.

Code of before goes on: its writers call the function of before, which leaves both columns alone.
Decision 0250.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0015"
down_revision = "0013"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the columns, and the function of batches that write them."""
    execute_file("0015_ownership.sql")
    execute_file("0015_commit_batch.sql")
