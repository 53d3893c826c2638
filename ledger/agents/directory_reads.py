"""Agents as dispatching needs them, whole or only what has changed.

Reads like those of `reader.py`, over the same pool. What has changed is read from the audit
chain, whose ids are in the order of the commits whatever any clock says; that it has, and what has
of prices, versions and revocations, `ledger/reads/directory_tail.py` tells. Spec: Registry.
Decision agent-health-and-waiting.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import sqlalchemy as sql

from core.records.audit import AuditEventType
from ledger.reads.pages import pages
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import agent, audit_event, former_key

# Of changes that one read or look returns.
CHANGES_MAX: Final = 500
# Of cards, which are larger than other rows.
CARDS_MAX: Final = 200
_COLUMNS: Final = (
    agent.c.did,
    agent.c.owner_did,
    agent.c.card,
    agent.c.endpoint,
    agent.c.public_key,
    agent.c.signing_secret,
    agent.c.status,
    agent.c.updated_ms,
    # Trust does not pass to an heir.
    sql.and_(
        agent.c.is_trusted,
        sql.func.coalesce(agent.c.inherited_from_did, agent.c.owner_did) == agent.c.owner_did,
    ).label("is_trusted"),
    agent.c.proven_by.is_not(None).label("is_proven"),
    former_key.c.public_key.label("former_key"),
    former_key.c.valid_until_ms.label("former_until_ms"),
)
# Of the keys before the current one only the last can still be valid.
_WITH_FORMER_KEY: Final = agent.outerjoin(
    former_key,
    (former_key.c.agent_did == agent.c.did) & (former_key.c.number == agent.c.key_number - 1),
)
# Of the targets of these events an owner reads what is new; a commit of one of them sends a notice
# (`Batch.is_directory_changed`).
OF_AGENTS: Final = (
    AuditEventType.AGENT_REGISTERED,
    AuditEventType.AGENT_DEREGISTERED,
    AuditEventType.AGENT_KEY_ROTATED,
    AuditEventType.AGENT_INHERITED,
    AuditEventType.AGENT_RECOVERED,
)
OF_PRICES: Final = (AuditEventType.CAPABILITY_PRICED,)
OF_VERSIONS: Final = (AuditEventType.VERSION_PUBLISHED, AuditEventType.VERSION_DEPRECATED)
OF_REVOCATIONS: Final = (AuditEventType.AGENT_REVOKED, AuditEventType.AGENT_UNREVOKED)


def directory_pages(
    reader: LedgerReader, *, page_rows: int = CARDS_MAX
) -> AsyncIterator[list[RowDict]]:
    """Yield what dispatching needs of every agent, page by page, sealed signing secrets included.

    In the order of registration, whatever their status: who was deregistered is known as such.
    """
    query = sql.select(*_COLUMNS, agent.c.registered_ms).select_from(_WITH_FORMER_KEY)
    return pages(reader, query, agent.c.registered_ms, agent.c.did, page_rows=page_rows)


async def newest_change(reader: LedgerReader) -> int:
    """Return the audit id of the newest change of any agent, 0 when there is none."""
    newest = [
        sql.select(sql.func.max(audit_event.c.audit_id))
        .where(audit_event.c.event_type == kind)
        .scalar_subquery()
        for kind in OF_AGENTS
    ]
    rows = await reader.rows(
        sql.select(sql.func.coalesce(sql.func.greatest(*newest), 0).label("id"))
    )
    return int(rows[0]["id"])


async def directory_changes(reader: LedgerReader, *, after: int) -> list[RowDict]:
    """Return rows, as `directory_pages`, of agents that have changed, with `changed_id`.

    Args:
        after: an audit id; later changes are looked for.

    Returns: each changed agent once, as it is now, in the order of their newest changes, at most
    `CHANGES_MAX`: after the last one's `changed_id` there may be more.
    """
    changed = (
        sql.select(
            audit_event.c.target_id, sql.func.max(audit_event.c.audit_id).label("changed_id")
        )
        .where(audit_event.c.event_type.in_(OF_AGENTS), audit_event.c.audit_id > after)
        .group_by(audit_event.c.target_id)
        .subquery()
    )
    return await reader.rows(
        sql.select(*_COLUMNS, changed.c.changed_id)
        .select_from(_WITH_FORMER_KEY)
        .join(changed, changed.c.target_id == agent.c.did)
        .order_by(changed.c.changed_id)
        .limit(CHANGES_MAX)
    )
