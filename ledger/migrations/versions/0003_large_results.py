"""Large results: bytes by hash, and rows of nodes that refer to them."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"

_SQL = Path(__file__).parents[1] / "sql" / "0003_large_results.sql"


def upgrade() -> None:
    """Add the table of bytes and the column that refers to it."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    # Past SQLAlchemy: the file holds many statements, and its percent signs are not parameters.
    driver.execute(_SQL.read_text())


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
