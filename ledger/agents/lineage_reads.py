"""Committed rows of the lineage of agents' cards.

Reads like those of `reader.py`, over the same pool. Reference: features.md (Agent cards,
Registration).
"""

from __future__ import annotations

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import agent_card


async def card_rows(
    reader: LedgerReader, did: str, *, limit: int, offset: int, before: int | None
) -> list[RowDict]:
    """Return the places of an agent's cards, the newest first.

    Args:
        before: only places with lower numbers.
    """
    return await reader.listed(
        sql.select(agent_card), "number", before, limit=limit, offset=offset, is_newest_first=True,
        did=did,
    )  # fmt: skip
