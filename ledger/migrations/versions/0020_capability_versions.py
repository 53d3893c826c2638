"""Versions of capabilities.

Code of before goes on: nothing that it writes has changed. Decision 0280.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0020"
down_revision = "0019"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the tables; the function that writes them comes with 0022."""
    execute_file("0020_capability_versions.sql")
