"""Planning capability versions: published into a line of versions that has an owner, deprecated.

A version never changes and never goes, so what was judged by the versions that there were holds as
long as there are as many. Reference: features.md (Capability versions). Decision
versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core.capabilities.semver import version_id
from core.records.audit import AuditEventType
from ledger.capabilities.version_commands import DeprecateVersion, PublishVersion
from ledger.connections.connecting import fetch
from ledger.tables.capability_tables import (
    CAPABILITY_LINES,
    CAPABILITY_VERSIONS,
    DEPRECATED_VERSIONS,
)
from ledger.writer.batch import Batch, Result, conflict, forbidden, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet

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
    """A capability's line of versions: whose it is, and how many versions it has.

    `is_assigned`: an administrator assigned it to its owner.
    """

    owner_did: str
    versions: int
    is_assigned: bool = False


@dataclass(frozen=True, slots=True)
class VersionReads:
    """A capability's line of versions; of the versions that a command names, by id, whether they
    are active; how many versions those have who may own the line."""

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
    """Return the line and the versions that a command is about."""
    other = command.successor if isinstance(command, DeprecateVersion) else command.deprecates
    line = (await read_lines(connection, [command.capability_id])).get(command.capability_id)
    named = [version_id(command.capability_id, one) for one in (command.version, other) if one]
    versions = dict(await fetch(connection, _VERSIONS, {"ids": named}))
    if isinstance(command, DeprecateVersion):
        return VersionReads(line, versions)
    if command.agent_did is not None:
        read_set.agent_dids.add(command.agent_did)
    # An administrator's version counts for the owner of the line that there is.
    owners = {command.owner_did or command.actor_did} | ({line.owner_did} if line else set())
    return VersionReads(
        line, versions, dict(await fetch(connection, _COUNTS, {"owners": list(owners)}))
    )


@plans(PublishVersion, load=load_versions, outlives_credential=True)
def plan_publish_version(command: PublishVersion, batch: Batch) -> Result:
    """Add a version to a capability's line of versions, or begin the line.

    Steps: (1) the caller may, (2) it is new, and was compared with all there are, (3) there is room
    for it, (4) what it succeeds is deprecated, (5) it is stored.
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
    """Return whose line it is with this version; refuse who may not publish it.

    The owner of the oldest proven agent begins a line, or takes over another's: money.md.
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
    """Refuse another version of a line and of its owner beyond either bound."""
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
