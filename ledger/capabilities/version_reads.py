"""Committed rows of capability versions, and which agent lets its owner begin a line.

Reads like those of `reader.py`, over the same pool: plain dicts keyed by column. Reference:
features.md (Capability versions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import ARRAY, array

from core.capabilities.choosing_versions import PublishedVersion
from core.capabilities.semver import parse_version
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import agent, capability_line, capability_version

# How long an agent of a proven DID keeps its place after it was deregistered: it may be down.
ABSENT_MS_MAX: Final = 30 * 24 * 3_600_000
_TEXTS: Final = ("input_schema", "output_schema", "changelog")
_HEADS: Final = tuple(column for column in capability_version.c if column.name not in _TEXTS)


class FirstOffer(NamedTuple):
    """An agent that shows that its owner offers a capability. `is_preceded`: another owner has such
    an agent that goes before it. `is_proven`: it is of a proven DID."""

    did: str
    revision: int
    is_preceded: bool
    is_proven: bool


async def version_rows(reader: LedgerReader, capability_ids: Iterable[str]) -> list[RowDict]:
    """Return all versions of some capabilities without schemas and changelogs, in no order.

    A line has a bounded number of versions, which have no order in the database.
    """
    is_asked = capability_version.c.capability_id.in_(list(capability_ids))
    return await reader.rows(sql.select(*_HEADS).where(is_asked))


async def changelogs(reader: LedgerReader, ids: Iterable[str]) -> dict[str, str]:
    """Return the changelogs of versions, by id."""
    columns = capability_version.c.id, capability_version.c.changelog
    query = sql.select(*columns).where(capability_version.c.id.in_(list(ids)))
    return {row["id"]: row["changelog"] for row in await reader.rows(query)}


async def whole_version_rows(reader: LedgerReader, ids: Iterable[str]) -> dict[str, RowDict]:
    """Return versions with their schemas, by id."""
    query = sql.select(capability_version).where(capability_version.c.id.in_(list(ids)))
    return {row["id"]: row for row in await reader.rows(query)}


async def line_owner(reader: LedgerReader, capability_id: str) -> str | None:
    """Return whose line of versions a capability has, None when it has none."""
    query = sql.select(capability_line.c.owner_did).where(
        capability_line.c.capability_id == capability_id
    )
    rows = await reader.rows(query)
    return str(rows[0]["owner_did"]) if rows else None


async def first_offer(
    reader: LedgerReader, owner_did: str, capability_id: str, *, needs_proof: bool, at_ms: int
) -> FirstOffer | None:
    """Return the agent by which an owner may lead a capability's line, None when there is none.

    It is the first of the owner's active agents that offer the capability. Agents of proven DIDs go
    before all others, and among equals the one that began to offer it earlier. An agent of a proven
    DID that was deregistered goes before others for `ABSENT_MS_MAX`. Agents that began to offer it
    when it had versions count for nothing: a newcomer takes no line over.

    Args:
        needs_proof: agents of unproven DIDs count for nothing.
        at_ms: now.
    """
    other = agent.alias("other")
    offered = [capability_id]
    is_unproven, is_other_proven = agent.c.proven_by.is_(None), other.c.proven_by.is_not(None)
    is_earlier = _began(other, capability_id) < _began(agent, capability_id)
    has_just_left = is_other_proven & (other.c.updated_ms > at_ms - ABSENT_MS_MAX)
    is_preceded = sql.exists().where(
        other.c.capability_ids.contains(offered),
        (other.c.status == "active") | has_just_left,
        other.c.owner_did != owner_did,
        sql.case((is_other_proven, is_unproven | is_earlier), else_=is_unproven & is_earlier),
    )
    is_newcomer = sql.exists().where(
        capability_version.c.capability_id == capability_id,
        capability_version.c.published_ms <= _since_ms(agent, capability_id),
    )
    query = sql.select(
        agent.c.did,
        agent.c.revision,
        is_preceded.label("is_preceded"),
        sql.not_(is_unproven).label("is_proven"),
    ).where(
        agent.c.owner_did == owner_did,
        agent.c.status == "active",
        agent.c.capability_ids.contains(offered),
        ~is_newcomer,
    )
    if needs_proof:
        query = query.where(agent.c.proven_by.is_not(None))
    began = _began(agent, capability_id)
    rows = await reader.rows(query.order_by(is_unproven, began).limit(1))
    return FirstOffer(**rows[0]) if rows else None


def _began(one: Any, capability_id: str) -> sql.Tuple:
    """Return since when an agent offers a capability, as SQL; its DID decides between equals."""
    return sql.tuple_(_since_ms(one, capability_id), one.c.did)


def _since_ms(one: Any, capability_id: str) -> sql.ColumnElement[int]:
    place = sql.func.array_position(one.c.capability_ids, capability_id)
    return sql.func.coalesce(one.c.offered_since_ms[place], one.c.registered_ms)


def _select_claim() -> sql.Select[Any]:
    """Select another owner's unproven claim of a DID, with the lines that go with it."""
    other = agent.alias("other")
    line = capability_line.c
    did, owner_did, ids = (
        sql.bindparam("did", type_=sql.Text),
        sql.bindparam("owner_did", type_=sql.Text),
        sql.bindparam("ids", type_=ARRAY(sql.Text)),
    )
    is_anothers = sql.exists().where(
        capability_version.c.capability_id == line.capability_id,
        capability_version.c.published_by_did != line.owner_did,
    )
    has_other = sql.exists().where(
        other.c.owner_did == line.owner_did,
        other.c.did != did,
        other.c.capability_ids.contains(array([line.capability_id])),
        other.c.proven_by.is_not(None) | (other.c.registered_ms < agent.c.registered_ms),
    )
    goes_with = sql.and_(
        line.owner_did == agent.c.owner_did,
        line.capability_id == sql.any_(ids),
        ~is_anothers.correlate(capability_line),
        ~has_other.correlate(agent, capability_line),
    )
    return (
        sql.select(line.capability_id)
        .select_from(agent.outerjoin(capability_line, goes_with))
        .where(agent.c.did == did, agent.c.proven_by.is_(None), agent.c.owner_did != owner_did)
    )


# Of each card of a bulk: to make the statement anew took three quarters of a registration.
_CLAIM: Final = PreparedStatement.of(_select_claim())


async def lines_of_claim(
    reader: LedgerReader, did: str, owner_did: str, capability_ids: Iterable[str]
) -> tuple[str, ...] | None:
    """Return the capabilities whose lines of versions go with a DID when another owner proves it.

    None: nobody else has an unproven claim of it. Such a line is that of the claim's owner, who
    has published all of its versions and has no other agent by which it may have begun: a proven
    one, or an earlier one.

    Args:
        owner_did: who proves the DID.
        capability_ids: what the proven agent offers.
    """
    values = {"did": did, "owner_did": owner_did, "ids": list(capability_ids)}
    lines = [row["capability_id"] for row in await reader.lookups.rows(_CLAIM, values)]
    return tuple(filter(None, lines)) if lines else None


def published(rows: Iterable[RowDict]) -> list[PublishedVersion]:
    """Return versions as the choice between them sees them."""
    return [
        PublishedVersion(
            parse_version(row["version"]),
            row["status"] == "deprecated",
            None if row["successor"] is None else parse_version(row["successor"]),
        )
        for row in rows
    ]
