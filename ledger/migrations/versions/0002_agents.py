"""Agents that live, leave and come back: heartbeats, probes, deregistration.

The DDL is SQL, in the order in which the files build on each other.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"

_SQL = Path(__file__).parents[1] / "sql"
_FILES = ("0002_registry", "0002_agent_live")


def upgrade() -> None:
    """Add the operational table and the ways out of the registry."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    for name in _FILES:
        # Past SQLAlchemy: a file holds many statements, and its percent signs are not parameters.
        driver.execute((_SQL / f"{name}.sql").read_text())


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
