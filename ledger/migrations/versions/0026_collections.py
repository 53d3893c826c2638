"""Entries of another kind: what an owner collects from the wallet of its agent.

The previous version goes on: it writes the kinds that it knows. Decision 0305.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0026"
down_revision = "0024"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Widen the check of an entry's kind."""
    execute_file("0026_collections.sql")
