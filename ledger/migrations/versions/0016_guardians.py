"""Guardians that count on, the keys of who has signed a recovery, and indexes of what is live.

Code of before goes on: its writers call the function of before, which leaves the new columns alone.
What they store of a recovery counts by its signers' names. Decisions 0261 and 0262.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0016"
down_revision = "0015"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the columns and indexes; the function that writes them comes with 0022."""
    execute_file("0016_guardians.sql")
