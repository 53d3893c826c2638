"""Capability versions: publish, deprecate and read them. Each line of versions has one owner.

Reference: features.md (Capability versions). Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from core.capabilities.semver import parse_version, version_id
from core.capabilities.version_choice import PublishedVersion
from core.records.audit import AuditEventType
from ledger.authority import OwnersCommand
from ledger.connections.connect import fetch
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import capability_line, capability_version, typed
from ledger.tables.market_tables import (
    CAPABILITY_LINES,
    CAPABILITY_VERSIONS,
    DEPRECATED_VERSIONS,
)
from ledger.writer.batch import Batch, Result, conflict, forbidden, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet


class PublishVersion(OwnersCommand, frozen=True, kw_only=True):
    """Add a version to a capability's line of versions, or begin the line.

    `owner_did`: the owner of the line; an administrator may assign the line to another owner.
    `agent_did`, `agent_revision`: an agent of the owner that offers the capability, and the
    revision of its card when the caller read it. Required to begin a line, except for an
    administrator.
    `takes_over`: this agent is the oldest proven one. So its owner may take over the line of
    another owner, unless an administrator has assigned the line.
    `needs_proof`: the agent's claim must be proven (the setting `claims`).
    `schema_hash`: hash of both schemas, `sha256:…`.
    `deprecates`: the version that this one succeeds.
    `versions_expected`: the number of versions with which the caller has compared this version.
    `owner_versions_max`, `line_versions_max`: maximum versions of one owner and of one capability.
    Rejections: FORBIDDEN; NOT_FOUND (the version to deprecate); CONFLICT (already published, too
    many, already deprecated; not stored if the line or the agent has changed meanwhile).
    Result: {"ownerDid"}.
    """

    owner_did: str | None = None
    agent_did: str | None = None
    agent_revision: int = 0
    capability_id: str
    version: str
    input_schema: str
    output_schema: str
    schema_hash: str
    changelog: str
    deprecates: str | None = None
    versions_expected: int
    owner_versions_max: int
    line_versions_max: int
    needs_proof: bool = False
    takes_over: bool = False


class DeprecateVersion(OwnersCommand, frozen=True, kw_only=True):
    """Deprecate a version for ever. Only the owner of its line or an administrator may do so.

    `successor`: an active version of the capability to be used instead, None for none.
    Rejections: NOT_FOUND, FORBIDDEN, CONFLICT (already deprecated, or the successor is not an
    active version). No result.
    """

    capability_id: str
    version: str
    successor: str | None = None


# Planning. The number and the schemas of a version never change, and no version is removed. So a
# decision that was based on all versions of a line holds until the line gets another version.

_LINES: Final = """
SELECT capability_id, owner_did, versions, is_assigned FROM callboard.capability_line
WHERE capability_id = ANY(%(ids)s)
"""
_VERSIONS: Final = """
SELECT id, status = 'active' FROM callboard.capability_version WHERE id = ANY(%(ids)s)
"""
_COUNTS: Final = """
SELECT owner_did, sum(versions)::integer FROM callboard.capability_line
WHERE owner_did = ANY(%(owners)s) GROUP BY owner_did
"""


@dataclass(frozen=True, slots=True)
class KnownLine:
    """A capability's line of versions: its owner, and its number of versions.

    `is_assigned`: an administrator assigned the line to its owner.
    """

    owner_did: str
    versions: int
    is_assigned: bool = False


@dataclass(frozen=True, slots=True)
class VersionReads:
    """The rows that the plan of a command reads.

    `line`: the capability's line, None if there is none. `versions`: by id, whether a version that
    the command names is active; a version that does not exist is absent. `counts`: by possible
    owner of the line, the number of the owner's versions.
    """

    line: KnownLine | None
    versions: Mapping[str, bool]
    counts: Mapping[str, int] = field(default_factory=dict)


async def read_lines(connection: Connection, ids: Iterable[str]) -> dict[str, KnownLine]:
    """Return the lines of versions of these capabilities, by capability."""
    rows = await fetch(connection, _LINES, {"ids": list(ids)})
    return {capability_id: KnownLine(*fields) for capability_id, *fields in rows}


async def load_versions(
    connection: Connection, command: PublishVersion | DeprecateVersion, read_set: ReadSet
) -> VersionReads:
    """Return the line and the versions that a command names."""
    other = command.successor if isinstance(command, DeprecateVersion) else command.deprecates
    line = (await read_lines(connection, [command.capability_id])).get(command.capability_id)
    named = [version_id(command.capability_id, one) for one in (command.version, other) if one]
    versions = dict(await fetch(connection, _VERSIONS, {"ids": named}))
    if isinstance(command, DeprecateVersion):
        return VersionReads(line, versions)
    if command.agent_did is not None:
        read_set.agent_dids.add(command.agent_did)
    # A version that an administrator publishes may count towards the current owner of the line.
    owners = {command.owner_did or command.actor_did} | ({line.owner_did} if line else set())
    return VersionReads(
        line, versions, dict(await fetch(connection, _COUNTS, {"owners": list(owners)}))
    )


@plans(PublishVersion, load=load_versions, outlives_credential=True)
def plan_publish_version(command: PublishVersion, batch: Batch) -> Result:
    """Add a version to a capability's line of versions, or begin the line.

    Steps: (1) check the caller's right, (2) check that the version is new and was compared with all
    existing ones, (3) check both maximums, (4) check the version that it deprecates, (5) store.
    """
    capability_id = command.capability_id
    reads: VersionReads = batch.loaded
    line = reads.line
    owner_did = _owner(command, line, batch)  # (1)
    own_id = version_id(capability_id, command.version)
    if own_id in reads.versions:  # (2)
        raise conflict(f"{own_id} is published already")
    count = 0 if line is None else line.versions
    if count != command.versions_expected:
        detail = (
            f"another version of {capability_id} was published by another request: repeat the"
            " request"
        )
        raise conflict(detail, is_stored=False)
    _check_room(command, owner_did, reads)  # (3)
    if command.deprecates is not None:  # (4)
        former_id = version_id(capability_id, command.deprecates)
        _check_active(former_id, reads)
    is_assigned = command.is_admin and (line is None or command.owner_did is not None)
    if line is not None and line.owner_did == owner_did:
        is_assigned = is_assigned or line.is_assigned
    row = {"capability_id": capability_id, "owner_did": owner_did, "versions": count + 1}
    batch.put(CAPABILITY_LINES, capability_id, {**row, "is_assigned": is_assigned})
    by_did = command.actor_did
    batch.store(CAPABILITY_VERSIONS, own_id, command, id=own_id, published_by_did=by_did)
    batch.record(  # (5)
        AuditEventType.VERSION_PUBLISHED,
        ("capability_version", own_id),
        ownerDid=owner_did,
        schemaHash=command.schema_hash,
        **({"formerOwnerDid": line.owner_did} if line and line.owner_did != owner_did else {}),
    )
    if command.deprecates is not None:
        _deprecate(former_id, command.version, owner_did, batch)
    batch.is_directory_changed = True
    return {"ownerDid": owner_did}


@plans(DeprecateVersion, load=load_versions, outlives_credential=True)
def plan_deprecate_version(command: DeprecateVersion, batch: Batch) -> Result:
    """Deprecate a version of the caller's line."""
    reads: VersionReads = batch.loaded
    line = reads.line
    own_id = version_id(command.capability_id, command.version)
    if line is None or own_id not in reads.versions:
        raise not_found(f"the version {own_id} is not known")
    _check_owner(command, line)
    _check_active(own_id, reads)
    if command.successor is not None:
        successor_id = version_id(command.capability_id, command.successor)
        if successor_id == own_id or not reads.versions.get(successor_id, False):
            raise conflict(f"successor: got {successor_id}, expected another active version")
    _deprecate(own_id, command.successor, line.owner_did, batch)
    batch.is_directory_changed = True
    return {}


def _owner(command: PublishVersion, line: KnownLine | None, batch: Batch) -> str:
    """Return the owner of the line after this publish; refuse callers without the right.

    The owner of the oldest proven agent may begin a line, or take over the line of another owner.
    Reference: features.md (Capability versions).
    """
    owner_did = command.owner_did or command.actor_did
    if line is not None and (not command.takes_over or command.is_admin or line.is_assigned):
        _check_owner(command, line)
        named_did = command.owner_did if command.is_admin else None
        return named_did or line.owner_did
    if command.is_admin:
        return owner_did
    if command.agent_did is None:
        raise forbidden(
            f"{owner_did} has no active agent{' of a proven DID' if command.needs_proof else ''}"
            f" that offers {command.capability_id}: register one first"
        )
    agent = batch.cache.agents.get(command.agent_did)
    if (
        agent is None
        or agent.revision != command.agent_revision
        or not (agent.is_active and agent.owner_did == owner_did)
        or ((command.needs_proof or line is not None) and agent.proven_by is None)
    ):
        detail = f"the agent {command.agent_did} was changed by another request: repeat the request"
        raise conflict(detail, is_stored=False)
    return owner_did


def _check_owner(command: PublishVersion | DeprecateVersion, line: KnownLine) -> None:
    own = command.actor_did if isinstance(command, DeprecateVersion) else command.owner_did
    if (own or command.actor_did) != line.owner_did and not command.is_admin:
        raise forbidden(f"the versions of {command.capability_id} belong to another owner")


def _check_room(command: PublishVersion, owner_did: str, reads: VersionReads) -> None:
    """Refuse a version above the maximum of its line or of its owner."""
    count = 0 if reads.line is None else reads.line.versions
    changes_owner = reads.line is not None and reads.line.owner_did != owner_did
    total = reads.counts.get(owner_did, 0) + (count if changes_owner else 0)
    for what, number, most in (
        (command.capability_id, count, command.line_versions_max),
        (owner_did, total, command.owner_versions_max),
    ):
        if number >= most:
            raise conflict(f"{what} has {number} versions, expected fewer than {most}")


def _check_active(own_id: str, reads: VersionReads) -> None:
    is_active = reads.versions.get(own_id)
    if is_active is None:
        raise not_found(f"the version {own_id} is not known")
    if not is_active:
        raise conflict(f"{own_id} is deprecated already")


def _deprecate(own_id: str, successor: str | None, owner_did: str, batch: Batch) -> None:
    batch.put(DEPRECATED_VERSIONS, own_id, {"id": own_id, "successor": successor})
    payload: dict[str, Any] = {"ownerDid": owner_did}
    if successor is not None:
        payload["successor"] = successor
    batch.record(AuditEventType.VERSION_DEPRECATED, ("capability_version", own_id), **payload)


# How long a deregistered agent of a proven DID still precedes others, because it may be down only
# for a time.
ABSENT_MS_MAX: Final = 30 * 24 * 3_600_000
_TEXTS: Final = ("input_schema", "output_schema", "changelog")
_HEADS: Final = tuple(column for column in capability_version.c if column.name not in _TEXTS)


_ID: Final = "CAST(:id AS text)"
# When an agent {a} began to offer the capability.
_SINCE_MS: Final = f"""coalesce(
    {{a}}.offered_since_ms[array_position({{a}}.capability_ids, {_ID})], {{a}}.registered_ms)"""
_IS_EARLIER: Final = f"({_SINCE_MS.format(a='o')}, o.did) < ({_SINCE_MS.format(a='a')}, a.did)"
_FIRST_OFFER: Final = sql.text(f"""
    SELECT a.did, a.revision, a.proven_by IS NOT NULL AS is_proven, EXISTS (
        SELECT FROM callboard.agent o
        WHERE o.capability_ids @> ARRAY[{_ID}] AND o.owner_did <> a.owner_did
            AND (o.status = 'active' OR o.proven_by IS NOT NULL AND o.updated_ms > :left_ms)
            AND CASE WHEN o.proven_by IS NULL THEN a.proven_by IS NULL AND {_IS_EARLIER}
                ELSE a.proven_by IS NULL OR {_IS_EARLIER} END) AS is_preceded
    FROM callboard.agent a
    WHERE a.owner_did = :owner_did AND a.status = 'active' AND a.capability_ids @> ARRAY[{_ID}]
        AND (a.proven_by IS NOT NULL OR NOT :needs_proof)
        AND NOT EXISTS (SELECT FROM callboard.capability_version v
            WHERE v.capability_id = {_ID} AND v.published_ms <= {_SINCE_MS.format(a="a")})
    ORDER BY a.proven_by IS NULL, {_SINCE_MS.format(a="a")}, a.did LIMIT 1
""").bindparams(*typed(bigint="left_ms"))


class FirstOffer(NamedTuple):
    """An agent that offers a capability for its owner. `is_preceded`: an agent of another owner
    precedes it. `is_proven`: the claim of its DID is proven."""

    did: str
    revision: int
    is_preceded: bool
    is_proven: bool


async def version_rows(reader: LedgerReader, capability_ids: Iterable[str]) -> list[RowDict]:
    """Return all versions of these capabilities without schemas and changelogs, unordered.

    A line has a bounded number of versions. The database has no order for version numbers.
    """
    is_asked = capability_version.c.capability_id.in_(list(capability_ids))
    return await reader.rows(sql.select(*_HEADS).where(is_asked))


async def changelogs(reader: LedgerReader, ids: Iterable[str]) -> dict[str, str]:
    """Return the changelogs of versions, by version id."""
    columns = capability_version.c.id, capability_version.c.changelog
    query = sql.select(*columns).where(capability_version.c.id.in_(list(ids)))
    return {row["id"]: row["changelog"] for row in await reader.rows(query)}


async def whole_version_rows(reader: LedgerReader, ids: Iterable[str]) -> dict[str, RowDict]:
    """Return versions with their schemas, by version id."""
    query = sql.select(capability_version).where(capability_version.c.id.in_(list(ids)))
    return {row["id"]: row for row in await reader.rows(query)}


async def line_owner(reader: LedgerReader, capability_id: str) -> str | None:
    """Return the owner of a capability's line of versions, None if it has no line."""
    query = sql.select(capability_line.c.owner_did).where(
        capability_line.c.capability_id == capability_id
    )
    rows = await reader.rows(query)
    return str(rows[0]["owner_did"]) if rows else None


async def first_offer(
    reader: LedgerReader, owner_did: str, capability_id: str, *, needs_proof: bool, at_ms: int
) -> FirstOffer | None:
    """Return the agent with which an owner may begin a capability's line, None if there is none.

    It is the first of the owner's active agents that offer the capability. Agents of proven DIDs
    precede others. Among equals the agent that began to offer the capability earlier is first. A
    deregistered agent of a proven DID still precedes agents of other owners for `ABSENT_MS_MAX`.
    Agents that began to offer the capability when it already had versions are left out, so a
    newcomer cannot take over a line.

    Args:
        needs_proof: leave out agents of unproven DIDs.
        at_ms: the current time, Unix milliseconds.
    """
    values = {"owner_did": owner_did, "id": capability_id, "needs_proof": needs_proof}
    rows = await reader.rows(_FIRST_OFFER, {**values, "left_ms": at_ms - ABSENT_MS_MAX})
    return FirstOffer(**rows[0]) if rows else None


# Another owner's unproven claim of a DID, with the lines that pass with it.
_CLAIM: Final = """
    SELECT l.capability_id
    FROM callboard.agent a LEFT JOIN callboard.capability_line l ON l.owner_did = a.owner_did
        AND l.capability_id = ANY (%(ids)s::text[])
        AND NOT EXISTS (SELECT FROM callboard.capability_version v
            WHERE v.capability_id = l.capability_id AND v.published_by_did <> l.owner_did)
        AND NOT EXISTS (SELECT FROM callboard.agent o
            WHERE o.owner_did = l.owner_did AND o.did <> %(did)s
                AND o.capability_ids @> ARRAY[l.capability_id]
                AND (o.proven_by IS NOT NULL OR o.registered_ms < a.registered_ms))
    WHERE a.did = %(did)s AND a.proven_by IS NULL AND a.owner_did <> %(owner_did)s
"""


async def lines_of_claim(
    reader: LedgerReader, did: str, owner_did: str, capability_ids: Iterable[str]
) -> tuple[str, ...] | None:
    """Return the capabilities whose lines pass to the new owner when a DID is proven.

    Return None if no other owner has an unproven claim of the DID. A line passes if the owner of
    the claim owns it and has published all its versions. A line does not pass if another agent of
    that owner could have begun it: an agent that is proven, or was registered earlier.

    Args:
        owner_did: the owner who proves the DID.
        capability_ids: the capabilities that the proven agent offers.
    """
    values = {"did": did, "owner_did": owner_did, "ids": list(capability_ids)}
    lines = [row["capability_id"] for row in await reader.lookups.rows(_CLAIM, values)]
    return tuple(filter(None, lines)) if lines else None


def published(rows: Iterable[RowDict]) -> list[PublishedVersion]:
    """Return version rows as the values that version selection uses."""
    return [
        PublishedVersion(
            parse_version(row["version"]),
            row["status"] == "deprecated",
            None if row["successor"] is None else parse_version(row["successor"]),
        )
        for row in rows
    ]
