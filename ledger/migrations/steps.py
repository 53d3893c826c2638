"""What migrations have in common: the least version of code that a schema asks for, and the refusal
to take a migration back.

Migrations are numbered, and do not change after a release. Each says its `phase`: `pre`, it is
applied while the previous release still runs, which must go on working; `post`, it is applied when
only the new release runs, and raises the least version of code.
"""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import text


def refuse_downgrade() -> NoReturn:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")


def require_code_version(version: int) -> None:
    """Let only writers of this version of code or a later one open the ledger from now on."""
    op.get_bind().execute(
        text("UPDATE callboard.compatibility SET min_code_version = :version"),
        {"version": version},
    )
