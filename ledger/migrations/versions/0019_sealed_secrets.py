"""Agents' signing secrets are found by the version of the key that seals them, and sealed anew.

Code of before goes on: it seals by the first key, as ever. Decision 0266.
"""

from __future__ import annotations

from ledger.migrations.steps import create_index_concurrently, execute_file, refuse_downgrade

revision = "0019"
down_revision = "0018"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Build the index, then make the function that changes what it finds."""
    create_index_concurrently(
        "agent_sealed_by",
        "callboard.agent ((substring(signing_secret, 1, 1)), did) WHERE signing_secret IS NOT NULL",
    )
    execute_file("0019_sealed_secrets.sql")
