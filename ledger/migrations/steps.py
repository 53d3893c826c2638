"""What migrations have in common: files of statements, indexes that are built beside running
writers, the least version of code that a schema asks for, and that none is ever taken back.

Migrations are numbered and frozen (`frozen.sha256`). Each says its `phase`: `pre`, it is applied
while the code of before still runs, and that code must go on working; `post`, it is applied when
only new code runs, and raises the least version of code. Decision 0132.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NoReturn

from alembic import op
from sqlalchemy import text

_SQL: Final = Path(__file__).with_name("sql")
_IS_INVALID = text(
    "SELECT NOT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass(:name)"
)


def execute_file(name: str) -> None:
    """Execute the statements of a file.

    Args:
        name: of the file, in `sql`.
    """
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    # Past SQLAlchemy: a file holds many statements, and its percent signs and colons are its own.
    driver.execute((_SQL / name).read_text())


def refuse_downgrade() -> NoReturn:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")


def create_index_concurrently(name: str, definition: str) -> None:
    """Build an index of the schema without holding writers up.

    One that was left half built by an attempt before is removed and built again.

    Args:
        name: of the index, without its schema.
        definition: what follows ON: table, columns, conditions.
    """
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        if connection.scalar(_IS_INVALID, {"name": f"callboard.{name}"}):
            connection.execute(text(f"DROP INDEX CONCURRENTLY callboard.{name}"))
        connection.execute(text(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}"))


def require_code_version(version: int) -> None:
    """Let only writers of this version of code or a later one open the ledger from now on."""
    op.get_bind().execute(
        text("UPDATE callboard.compatibility SET min_code_version = :version"),
        {"version": version},
    )
