"""Functions for migrations: require a minimum version of code; refuse a downgrade.

Migrations are numbered, and do not change after a release. Each has a `phase`. `pre`: it is applied
while the previous release still runs, and must not break that release. `post`: it is applied when
only the new release runs, and raises the minimum version of code.
"""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import text


def refuse_downgrade() -> NoReturn:
    """Refuse a downgrade, because it would delete audited rows."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")


def require_code_version(version: int) -> None:
    """Require at least this version of code of every later writer."""
    op.get_bind().execute(
        text("UPDATE callboard.compatibility SET min_code_version = :version"),
        {"version": version},
    )
