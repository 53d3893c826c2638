"""What the rules of the market need: promises, whose agents count, paid outcomes, locks of bids.

Decision 0308.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0027"
down_revision = "0026"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the columns, and the function that writes them."""
    execute_file("0027_market_rules.sql")
    execute_file("0027_commit_batch.sql")
