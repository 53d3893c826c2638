"""What migrations have in common: indexes that are built beside running writers, the least version
of code that a schema asks for, and the refusal to take a migration back.

Migrations are numbered, and do not change after a release. Each says its `phase`: `pre`, it is
applied while the previous release still runs, which must go on working; `post`, it is applied when
only the new release runs, and raises the least version of code.
"""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import text

_IS_INVALID = text(
    "SELECT NOT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass(:name)"
)


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
