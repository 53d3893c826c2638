"""Parties of workflows' entries by columns and text, without reading each body as JSON.

Code of before calls the same function and finds the same parties. Decision 0270.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0023"
down_revision = "0022"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Replace the function that brings the index of parties on."""
    execute_file("0023_index_parties.sql")
