"""A line of an invoice belongs to that invoice for good, whoever writes.

Code of before goes on: it never changes what is fixed.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0008"
down_revision = "0007"
phase = "pre"

_SQL = Path(__file__).parents[1] / "sql" / "0008_invoice_lines.sql"


def upgrade() -> None:
    """Add the triggers."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    # Past SQLAlchemy: a file holds many statements.
    driver.execute(_SQL.read_text())


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
