"""The whole schema of the first release: tables, triggers, other functions, roles.

The tables are created from their descriptions in `ledger/tables/`; at the first release that text
will be frozen in a file. Development before it had revisions up to 0027; a database with such a
revision cannot be upgraded.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from ledger.migrations.steps import refuse_downgrade
from ledger.tables.write_function import TABLES

revision = "1000"
down_revision = None
phase = "pre"
downgrade = refuse_downgrade

_SQL = Path(__file__).parents[1] / "baseline"
# In an order in which each file refers only to earlier ones.
_FILES = (
    "first_rows", "operational_tables", "indexes", "triggers", "offers", "roles",
)  # fmt: skip


def upgrade() -> None:
    """Create everything."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    for table in TABLES:
        driver.execute(table.ddl)
    for name in _FILES:
        # Not through SQLAlchemy: a file has many statements, and percent signs and colons.
        driver.execute((_SQL / f"{name}.sql").read_text())
