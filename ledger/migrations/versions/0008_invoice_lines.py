"""A line of an invoice belongs to that invoice for good, for every role that writes.

Code of before goes on: it never changes what is fixed.
"""

from __future__ import annotations

from ledger.migrations.steps import execute_file, refuse_downgrade

revision = "0008"
down_revision = "0007"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    """Add the triggers."""
    execute_file("0008_invoice_lines.sql")
