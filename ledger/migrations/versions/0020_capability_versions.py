"""Versions of capabilities, and the function that commits a batch with them.

Code of before goes on: nothing that it writes has changed. Decision 0280.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0020"
down_revision = "0019"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the tables, and the function of the next version."""
    execute_file("0020_capability_versions.sql")
    execute_file("0020_commit_batch.sql")
