"""Invoices cost the writer less: their lines' invoice is checked once per statement, and what
stands in the way of a new one is found by index, however many a payer has.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from ledger.migrations.steps import create_index_concurrently

revision = "0005"
down_revision = "0003"
phase = "pre"

_SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Replace the foreign key by a trigger, and build the indexes."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute((_SQL / "0005_invoices.sql").read_text())
    create_index_concurrently(
        "invoice_period",
        "callboard.invoice (payer_did, period_end_ms)"
        " WHERE workflow_id IS NULL AND status <> 'void'",
    )
    create_index_concurrently(
        "invoice_workflow",
        "callboard.invoice (workflow_id) WHERE workflow_id IS NOT NULL AND status <> 'void'",
    )


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
