"""Committed disputes and feedback. Reference: money.md (Disputes and refunds)."""

from __future__ import annotations

import sqlalchemy as sql

from ledger.accounts.agent_money import money_agents
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import dispute, feedback


async def dispute_row(reader: LedgerReader, dispute_id: str) -> RowDict | None:
    """Return a dispute's row by its id."""
    return await reader.row(sql.select(dispute).where(dispute.c.id == dispute_id))


async def dispute_rows(
    reader: LedgerReader,
    *,
    party_did: str | None,
    status: str | None,
    workflow_id: str | None,
    limit: int,
    offset: int,
    before_id: str | None,
) -> list[RowDict]:
    """Return disputes, newest first.

    Args:
        party_did: only those of this DID and of the agents whose money is its own.
    """
    query = sql.select(dispute)
    if party_did is not None:
        parties = sql.union_all(
            sql.select(sql.literal(party_did).label("did")), money_agents(party_did)
        ).subquery()
        sides = (
            sql.select(dispute.c.id).where(side.in_(sql.select(parties.c.did)))
            for side in (dispute.c.complainant_did, dispute.c.respondent_did)
        )
        query = query.where(dispute.c.id.in_(sql.union(*sides)))
    return await reader.listed(
        query, "id", before_id, limit=limit, offset=offset, is_newest_first=True,
        status=status, workflow_id=workflow_id,
    )  # fmt: skip


async def feedback_rows(reader: LedgerReader, workflow_id: str) -> list[RowDict]:
    """Return what a payer said about the agents of a workflow, in the order of saying."""
    query = (
        sql.select(feedback)
        .where(feedback.c.workflow_id == workflow_id)
        .order_by(feedback.c.created_ms, feedback.c.agent_did)
    )
    return await reader.rows(query)
