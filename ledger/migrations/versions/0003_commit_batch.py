"""The function that commits a batch, made from the tables' descriptions, beside its predecessor.

Writers of before go on with `callboard.commit_batch`, on the same tables and triggers, until they
are gone.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
phase = "pre"

_SQL = Path(__file__).parents[1] / "sql"
_FILES = ("0003_triggers", "0003_commit_batch")


def upgrade() -> None:
    """Replace the triggers that every batch goes through, and create the function."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    for name in _FILES:
        # Past SQLAlchemy: a file holds many statements, and its percent signs are not parameters.
        driver.execute((_SQL / f"{name}.sql").read_text())


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
