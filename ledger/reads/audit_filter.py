"""Builds queries for filtered audit entries that never scan the whole audit log.

An entry matches an event type or a target if one of its events matches. Life events, which every
ordinary workflow has, are frequent. An entry with a life event is found by its workflow, or near
any position of the log. Every other event has a row in `audit_event`, indexed by type and by
target.

A life event has no index, and may still be rare or absent. Therefore a page scans at most
`LOOKED_AT_MAX` entries, and the next page continues after the last scanned entry. For a caller who
sees only its own entries, a page scans only the caller's entries, at most `OWN_LOOKED_AT_MAX`. So
the length of a page reveals nothing about other entries. Reference: money.md (Audit chain);
decision audit-chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypedDict

import sqlalchemy as sql

from core.ids import canonical_uuid
from core.records.audit import LIFE_EVENTS
from ledger.schema import audit, audit_event, audit_party

_WORKFLOW = "workflow"
# Maximum entries that a page scans if no index finds the matching ones.
LOOKED_AT_MAX: Final = 10_000
# Maximum own entries of a caller that a page scans, each read by its key.
OWN_LOOKED_AT_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class AuditSelect:
    """The query of the matching audit rows, without an order.

    `last_looked_at`: the query of the id of the last scanned entry, for a filter without an index.
    It returns no row, or null, if all entries are scanned. None: an index is used.
    """

    rows: sql.Select[Any]
    last_looked_at: sql.Select[Any] | None = None


class AuditFilter(TypedDict, total=False):
    """The conditions of matching entries.

    `event_type`: type of an event of the entry; with a target, of the same event. `target_type`,
    `target_id`: the target of an event. `start_ms`, `end_ms`: the time of the entry, [start, end).
    `before_id`: only entries with smaller ids.
    """

    event_type: str | None
    actor_did: str | None
    target_type: str | None
    target_id: str | None
    start_ms: int | None
    end_ms: int | None
    before_id: int | None


def audit_select(
    wanted: AuditFilter, party_did: str | None = None, looked_at_max: int | None = None
) -> AuditSelect:
    """Return the query of the matching audit rows.

    Args:
        party_did: only entries to which this DID is a party; None: all.
        looked_at_max: maximum entries that are scanned, newest first, if no index finds the
            matching ones; None: the default maximum.
    """
    end_ms, before_id = wanted.get("end_ms"), wanted.get("before_id")
    event = (wanted.get("event_type"), wanted.get("target_type"), wanted.get("target_id"))
    conditions = []
    if (actor_did := wanted.get("actor_did")) is not None:
        conditions.append(audit.c.actor_did == actor_did)
    if (start_ms := wanted.get("start_ms")) is not None:
        conditions.append(audit.c.id >= _first_since(start_ms))
    if end_ms is not None:
        conditions.append(audit.c.id < _first_since(end_ms))
    if party_did is not None:
        if any(one is not None for one in event):
            conditions.append(_is_match(*event))
        own = sql.select(audit_party.c.audit_id.label("id")).where(audit_party.c.party == party_did)
        if before_id is not None:
            own = own.where(audit_party.c.audit_id < before_id)
        if end_ms is not None:
            own = own.where(audit_party.c.audit_id < _first_since(end_ms))
        return _own(own, conditions, event, looked_at_max or OWN_LOOKED_AT_MAX)
    query = sql.select(audit).where(*conditions)
    if before_id is not None:
        query = query.where(audit.c.id < before_id)
    event_type, target_type, target_id = event
    is_of_life, is_of_workflow = event_type in LIFE_EVENTS, target_type in (None, _WORKFLOW)
    is_wide = is_of_life or (event_type is None and target_type is not None)
    if is_wide and is_of_workflow and target_id is None:
        return _looked_through(query, _is_match(*event), looked_at_max or LOOKED_AT_MAX)
    if is_of_life:
        return AuditSelect(query.where(_is_match(*event)))
    if event_type is not None or not is_of_workflow:
        return AuditSelect(_with_event(query, event_type, target_type, target_id, before_id))
    if target_id is not None:
        return AuditSelect(_about(query, target_type, target_id, before_id))
    return AuditSelect(query)


def _own(
    own: sql.Select[Any],
    conditions: list[sql.ColumnElement[bool]],
    event: tuple[str | None, str | None, str | None],
    looked_at_max: int,
) -> AuditSelect:
    _, target_type, target_id = event
    # OFFSET 0 in both queries keeps the planner from scanning the whole log. The planner cannot
    # know how few of the matching entries belong to the caller.
    if (
        target_id is not None
        and target_type == _WORKFLOW
        and canonical_uuid(target_id) == target_id
    ):
        is_about = _is_of_workflow(target_id)
        about = sql.select(audit).where(is_about, *conditions).offset(0).subquery()
        is_own = own.where(audit_party.c.audit_id == about.c.id).exists()
        return AuditSelect(sql.select(about).where(is_own))
    newest = own.order_by(audit_party.c.audit_id.desc())
    looked_at = newest.limit(looked_at_max).subquery()
    found = sql.select(audit).where(audit.c.id == looked_at.c.id, *conditions).offset(0).lateral()
    more = (column for column in found.c if column.name != "id")
    query = sql.select(looked_at.c.id, *more).select_from(looked_at.join(found, sql.true()))
    return AuditSelect(query, newest.offset(looked_at_max - 1).limit(1))


def _is_match(
    event_type: str | None, target_type: str | None, target_id: str | None
) -> sql.ColumnElement[bool]:
    """Return the condition of an entry with an event that has this type and this target.

    Args:
        event_type, target_type, target_id: as in `AuditFilter`; at least one is not None.
    """
    is_of_workflow = sql.true() if target_id is None else _is_of_workflow(target_id)
    if event_type in LIFE_EVENTS:
        is_about_other = target_type not in (None, _WORKFLOW)
        is_of_type = audit.c.event_types.contains([event_type])
        return sql.false() if is_about_other else sql.and_(is_of_type, is_of_workflow)
    same = _events(event_type, target_type, target_id)
    has_event = sql.exists().where(audit_event.c.audit_id == audit.c.id, *same)
    if event_type is not None or target_type not in (None, _WORKFLOW):
        return has_event
    if target_type is not None:
        return sql.and_(audit.c.workflow_id.is_not(None), is_of_workflow)
    return sql.or_(is_of_workflow, has_event)


def _looked_through(
    query: sql.Select[Any], is_match: sql.ColumnElement[bool], looked_at_max: int
) -> AuditSelect:
    """Narrow a query to the matching rows among its newest rows."""
    newest = query.with_only_columns(audit.c.id).order_by(audit.c.id.desc())
    last = newest.offset(looked_at_max - 1).limit(1)
    first_id = sql.func.coalesce(last.scalar_subquery(), 0)
    return AuditSelect(query.where(is_match, audit.c.id >= first_id), last)


def _about(
    query: sql.Select[Any], target_type: str | None, target_id: str, before_id: int | None
) -> sql.Select[Any]:
    """Narrow a query to a target, which may be a workflow."""
    if target_type is not None:
        return query.where(_is_of_workflow(target_id))
    if not _is_id(target_id):
        return _with_event(query, None, None, target_id, before_id)
    # The UUID may also be the id of a dispute or an invoice. These have few events.
    others = sql.select(audit_event.c.audit_id).where(
        audit_event.c.target_id == target_id, audit_event.c.target_type != _WORKFLOW
    )
    is_of_other = audit.c.id == sql.any_(sql.func.array(others.scalar_subquery()))
    return query.where(sql.or_(_is_of_workflow(target_id), is_of_other))


def _with_event(
    query: sql.Select[Any],
    event_type: str | None,
    target_type: str | None,
    target_id: str | None,
    before_id: int | None,
) -> sql.Select[Any]:
    """Narrow a query to entries with an event that has its own row; newest first, so that the read
    stops at the end of the page."""
    same = _events(event_type, target_type, target_id)
    found = sql.select(audit_event.c.audit_id).distinct().where(*same)
    if before_id is not None:
        found = found.where(audit_event.c.audit_id < before_id)
    newest_first = found.order_by(audit_event.c.audit_id.desc()).subquery()
    return query.join(newest_first, newest_first.c.audit_id == audit.c.id)


def _events(
    event_type: str | None, target_type: str | None, target_id: str | None
) -> list[sql.ColumnElement[bool]]:
    event = {"event_type": event_type, "target_type": target_type, "target_id": target_id}
    return [audit_event.c[name] == value for name, value in event.items() if value is not None]


def _first_since(at_ms: int) -> sql.ScalarSelect[Any]:
    """Return the query of the id of the first entry at or after a time, Unix milliseconds."""
    at = sql.literal(at_ms, sql.BigInteger)
    return sql.select(sql.func.callboard.first_audit_id_since(at)).scalar_subquery()


def _is_of_workflow(target_id: str) -> sql.ColumnElement[bool]:
    return audit.c.workflow_id == target_id if _is_id(target_id) else sql.false()


def _is_id(text: str) -> bool:
    """Say whether a text is a UUID in canonical form, the form of all ids in the audit log."""
    return canonical_uuid(text) == text
