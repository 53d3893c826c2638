"""Reads of triggers and their runs. Reference: features.md (Triggers, Schedules)."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.records.statuses import TriggerStatus
from ledger.reads.reader import LedgerReader, RowDict, RowPage
from ledger.schema import trigger, trigger_run, workflow

_BY_ID: Final = sql.select(trigger).where(trigger.c.id == sql.bindparam("id"))
_BY_TOKEN: Final = sql.select(trigger).where(trigger.c.token_hash == sql.bindparam("token_hash"))
_RUN: Final = (
    sql.select(trigger_run)
    .where(trigger_run.c.trigger_id == sql.bindparam("id"))
    .where(trigger_run.c.key == sql.bindparam("key"))
)
_COUNT: Final = (
    sql.select(sql.func.count().label("triggers"))
    .where(trigger.c.owner_did == sql.bindparam("owner_did"))
    .where(trigger.c.status != sql.literal_column("'ended'"))
)
# Owners take turns: none can keep the schedules of others waiting. A due time of policy `queue`
# waits for the run before it. Whether a run has not ended is asked of each due schedule once.
_DUE: Final = sql.text(
    """
    WITH due AS (
        SELECT t.id, t.due_ms, t.config ->> 'overlapPolicy' AS policy,
            octet_length(t.manifest) AS bytes,
            row_number() OVER (PARTITION BY t.owner_did ORDER BY t.due_ms) AS turn,
            EXISTS (SELECT FROM callboard.workflow w
                WHERE w.template_id = t.id AND w.completed_ms IS NULL) AS is_running
        FROM callboard.trigger t WHERE t.due_ms + t.delay_ms <= :at_ms
    ), sized AS (
        SELECT id, turn, due_ms, is_running,
            sum(bytes) OVER (ORDER BY turn, due_ms, id) - bytes AS bytes_before
        FROM due WHERE policy <> 'queue' OR NOT is_running
        ORDER BY turn, due_ms, id LIMIT :limit
    )
    SELECT t.*, s.is_running FROM sized s JOIN callboard.trigger t ON t.id = s.id
    WHERE s.bytes_before < :bytes_max ORDER BY s.turn, s.due_ms
    """
)
# depth: that of the run whose workflow the audit entry is about, plus 1; 0 if the run's owner is
# another one, who could else keep the trigger from running.
_EVENT: Final = sql.text(
    """
    SELECT a.body, a.workflow_id::text, coalesce((
        SELECT led.depth + 1 FROM callboard.trigger_run led
        JOIN callboard.trigger cause ON cause.id = led.trigger_id
        JOIN callboard.trigger t ON t.owner_did = cause.owner_did
        WHERE led.workflow_id = a.workflow_id AND t.id = CAST(:trigger_id AS uuid)), 0) AS depth,
        EXISTS (SELECT FROM callboard.trigger_run r
            WHERE r.trigger_id = CAST(:trigger_id AS uuid) AND r.key = :key) AS is_decided
    FROM callboard.audit a WHERE a.id = :audit_id
    """
)


async def trigger_row(reader: LedgerReader, trigger_id: str) -> RowDict | None:
    """Return a trigger by its id, which has the form of a UUID."""
    return await reader.row(_BY_ID, {"id": trigger_id})


async def trigger_of_token(reader: LedgerReader, token_hash: bytes) -> RowDict | None:
    """Return the trigger whose hook has the token with this SHA-256."""
    return await reader.row(_BY_TOKEN, {"token_hash": token_hash})


async def count_triggers(reader: LedgerReader, owner_did: str) -> int:
    """Return how many triggers of an owner have not ended."""
    (row,) = await reader.rows(_COUNT, {"owner_did": owner_did})
    return int(row["triggers"])


async def trigger_rows(
    reader: LedgerReader,
    *,
    owner_did: str | None,
    kind: str | None,
    status: str | None,
    limit: int,
    offset: int,
    before_id: str | None,
    bytes_max: int,
) -> RowPage:
    """Return a page of triggers, the newest first; those that have ended only by their status.

    Args:
        owner_did, kind, status: None for all; without a status, for all that have not ended.
        before_id: the last id of the page before.
    """
    # Spelt as the partial index is: a parameter would not find it.
    wanted: sql.ColumnElement[str] = sql.literal_column(
        f"'{TriggerStatus(status or TriggerStatus.ENDED)}'"
    )
    is_status = trigger.c.status != wanted if status is None else trigger.c.status == wanted
    return await reader.page(
        sql.select(trigger).where(is_status), "id", before_id, wide="manifest", limit=limit,
        offset=offset, bytes_max=bytes_max, is_newest_first=True, owner_did=owner_did, kind=kind,
    )  # fmt: skip


async def run_rows(
    reader: LedgerReader, trigger_id: str, *, limit: int, offset: int, before_audit_id: int | None
) -> list[RowDict]:
    """Return runs of a trigger, the newest first, each with the `workflow_status`."""
    query = (
        sql.select(trigger_run, workflow.c.status.label("workflow_status"))
        .select_from(trigger_run)
        .outerjoin(workflow, workflow.c.id == trigger_run.c.workflow_id)
        .where(trigger_run.c.trigger_id == trigger_id)
    )
    return await reader.listed(
        query, "audit_id", before_audit_id, limit=limit, offset=offset, is_newest_first=True
    )


async def run_row(reader: LedgerReader, trigger_id: str, key: str) -> RowDict | None:
    """Return the run of a trigger by the key of its cause."""
    return await reader.row(_RUN, {"id": trigger_id, "key": key})


async def due_triggers(
    reader: LedgerReader, *, at_ms: int, limit: int, bytes_max: int
) -> list[RowDict]:
    """Return schedules that have started to be due, those of different owners in turns.

    Args:
        bytes_max: of their templates: the list ends with the one that passes it.

    Returns: rows of triggers, each with `is_running`: whether a run of it has not ended.
    """
    return await reader.rows(_DUE, {"at_ms": at_ms, "limit": limit, "bytes_max": bytes_max})


async def event_row(reader: LedgerReader, audit_id: int, *, trigger_id: str, key: str) -> RowDict:
    """Return an audit entry as the cause of a run.

    Args:
        key: of the cause.

    Returns: the entry's row with the run's `depth`, and `is_decided`: whether the cause has a run.
    """
    values = {"audit_id": audit_id, "trigger_id": trigger_id, "key": key}
    (row,) = await reader.rows(_EVENT, values)
    return row
