"""The head names the address of its writer, and counts the beats of an idle one.

Code of before goes on: it leaves both as they are. Decision 0211.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0011"
down_revision = "0010"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the two columns, which the writer may change."""
    execute_file("0011_ledger_head.sql")
