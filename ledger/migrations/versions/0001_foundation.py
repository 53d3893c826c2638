"""Foundation: tables, invariants, the one function of the write path, roles.

The DDL is SQL, in the order in which the files build on each other. Frozen, as they are.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
phase = "pre"

_SQL = Path(__file__).parents[1] / "sql"
_FILES = (
    "0001_tables", "0001_market_tables", "0001_triggers", "0001_commit_registry",
    "0001_commit_market", "0001_commit_batch", "0001_roles", "0001_replies",
)  # fmt: skip


def upgrade() -> None:
    """Create everything."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    for name in _FILES:
        # Past SQLAlchemy: a file holds many statements, and its percent signs are not parameters.
        driver.execute((_SQL / f"{name}.sql").read_text())


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
