"""Offers have versions and the names of schema fields, and are walked by owner, capability, place.

Code of before goes on: it calls the same function, and its statements find more words. Until the
cards are read again, which the first searches and registrations do, their agents are not found.
Decision 0291.
"""

from __future__ import annotations

from ledger.migrations.steps import (
    create_index_concurrently,
    execute_file,
    refuse_downgrade,
)

revision = "0024"
down_revision = "0023"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Build the indexes, add the column, replace the functions, and note every agent."""
    create_index_concurrently("offer_place", "callboard.offer (place, did, capability_id)")
    create_index_concurrently(
        "offer_capability", 'callboard.offer (capability_id COLLATE "C", place, did)'
    )
    create_index_concurrently("offer_owner_place", "callboard.offer (owner_did, place)")
    execute_file("0024_offers.sql")
