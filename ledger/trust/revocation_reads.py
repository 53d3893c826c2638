"""Who is revoked at a moment: one DID, some, all.

Reads like those of `reader.py`, over the same pool. Reference: features.md (Revocation).
"""

from __future__ import annotations

import sqlalchemy as sql

from ledger.reads.agent_pages import is_shown
from ledger.reads.reader import (
    PAGE_BYTES_MAX,
    LedgerReader,
    RowDict,
    RowPage,
)
from ledger.schema import revocation


def in_force(at_ms: int) -> sql.ColumnElement[bool]:
    expires = revocation.c.expires_ms
    return revocation.c.ended_ms.is_(None) & (expires.is_(None) | (expires > at_ms))


async def revocation_row(reader: LedgerReader, did: str, *, at_ms: int) -> RowDict | None:
    """Return a DID's revocation that is in force at a time, milliseconds."""
    query = sql.select(revocation).where(revocation.c.did == did, in_force(at_ms))
    return await reader.row(query)


async def revocation_rows(
    reader: LedgerReader,
    *,
    at_ms: int,
    limit: int,
    offset: int,
    after_did: str | None,
    viewer: str | None,
    bytes_max: int = PAGE_BYTES_MAX,
) -> RowPage:
    """Return the revocations in force at a time, in the order of their DIDs.

    Args:
        viewer: the DID that may see them; None: an administrator.
        bytes_max: of the evidence: the page ends with the row that passes it.
    """
    condition = is_shown("callboard.revocation.did", viewer)
    query = sql.select(revocation).where(in_force(at_ms), condition)
    return await reader.page(
        query, "did", after_did, wide="evidence", limit=limit, offset=offset, bytes_max=bytes_max
    )
