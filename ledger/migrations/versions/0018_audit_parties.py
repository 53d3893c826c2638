"""Who is a party of which audit entry, found beside the batches by following the chain.

Code of before goes on: nothing that writes a batch has changed. Decision 0270.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0018"
down_revision = "0016"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the index of parties, how far it is, and the function that brings it on."""
    execute_file("0018_audit_parties.sql")
