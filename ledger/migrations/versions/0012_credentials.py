"""Rotated API keys, and nonces of signed requests.

Code of before goes on: its writers call the function of before, and it knows neither. A key that is
rotated meanwhile opens by its newest secret alone where code of before looks it up. Decisions 0220
and 0222.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0012"
down_revision = "0011"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the columns and the table, and the function of batches that rotate keys."""
    execute_file("0012_credentials.sql")
    execute_file("0012_commit_batch.sql")
