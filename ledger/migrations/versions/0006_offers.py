"""What agents offer, as words that an index finds; filled for the agents that are there.

Code of before goes on: it reads the cards, and its registrations are noted by the trigger.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0006"
down_revision = "0005"
phase = "pre"

_SQL = Path(__file__).parents[1] / "sql" / "0006_offers.sql"
# Of ledger/agents/offer_index.py as it was then.
_INDEX_SOME = text("SELECT callboard.index_offers(1000, 8388608, 20000)")


def upgrade() -> None:
    """Create the tables, and fill them a transaction at a time, beside running writers."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    # Past SQLAlchemy: a file holds many statements, and its percent signs are not parameters.
    driver.execute(_SQL.read_text())
    with op.get_context().autocommit_block():
        while op.get_bind().scalar(_INDEX_SOME):
            pass


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
