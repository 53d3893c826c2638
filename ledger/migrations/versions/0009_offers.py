"""The changed agents of all owners are read in turn, each once for all of its changes.

Code of before goes on: it calls the same function.
"""

from __future__ import annotations

from ledger.migrations.steps import (
    create_index_concurrently,
    execute_file,
    refuse_downgrade,
)

revision = "0009"
down_revision = "0008"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Build the index by which owners take turns, and replace the function."""
    create_index_concurrently("offer_due_owner", "callboard.offer_due (owner_did, seq)")
    execute_file("0009_offers.sql")
