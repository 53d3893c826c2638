"""Subnets with their members and policies, and counts for policies that limit a payer's nodes per
minute.

Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sql

from core.errors import ErrorCode
from core.records.api.peers import MEMBERS_MAX
from core.records.audit import AuditEventType
from core.records.statuses import PolicyType, SubnetType
from core.subnets.policies import Policy
from ledger.authority import OwnersCommand
from ledger.connections.connect import fetch
from ledger.features.workflow_commands import PublishWorkflow
from ledger.reads.reader import LedgerReader, RowDict
from ledger.tables.federation_tables import (
    CHANGED_SUBNETS,
    ENDED_MEMBERS,
    ENDED_POLICIES,
    REMOVED_POLICIES,
    REMOVED_SUBNETS,
    SUBNET_MEMBERS,
    SUBNET_POLICIES,
    SUBNETS,
)
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet


class CreateSubnet(OwnersCommand, frozen=True, kw_only=True):
    """Create a subnet, owned by the caller.

    `member_dids`: the DIDs that are listed, including the creator. The creator and its agents join
    at once; so do all DIDs that an administrator lists. Rejection: CONFLICT (too many subnets).
    Result: {}.
    """

    subnet_id: str
    name: str
    description: str
    policy_type: SubnetType
    member_dids: tuple[str, ...]


class RemoveSubnet(OwnersCommand, frozen=True, kw_only=True):
    """Remove a subnet, its members and its policies. Only its owner may do so.

    Rejections: NOT_FOUND (also if it is hidden from the caller), FORBIDDEN. Result: {}.
    """

    subnet_id: str


class AddSubnetMember(OwnersCommand, frozen=True, kw_only=True):
    """List a DID in a subnet, or let it join. It joins if the caller is the DID, its owner or an
    administrator.

    Rejections: NOT_FOUND (also if the subnet is hidden from the caller), FORBIDDEN, CONFLICT (too
    many members, or the DID has joined too many subnets). Result: {"isJoined": bool}.
    """

    subnet_id: str
    member_did: str


class RemoveSubnetMember(OwnersCommand, frozen=True, kw_only=True):
    """Remove a DID from a subnet. The subnet's owner, the DID or its owner may do so.

    Rejections: NOT_FOUND (also if the DID is no member), FORBIDDEN. Result: {}.
    """

    subnet_id: str
    member_did: str


class CreatePolicy(OwnersCommand, frozen=True, kw_only=True):
    """Add a policy to a subnet. Only the subnet's owner may do so.

    Rejections: NOT_FOUND, FORBIDDEN, CONFLICT (too many policies). Result: {"createdMs"}.
    """

    policy: Policy


class RemovePolicy(OwnersCommand, frozen=True, kw_only=True):
    """Remove a policy of a subnet. Only the subnet's owner may do so.

    Rejections: NOT_FOUND, FORBIDDEN. Result: {}.
    """

    policy_id: str


# Counts the nodes that a payer publishes in a minute, for each rate policy that binds the payer.
# Only the writer counts, so the limit is exact over all replicas and owner processes. A new writer
# starts with empty counts, so in the minute of a take-over a payer can publish up to twice the
# limit.

MINUTE_MS: Final = 60_000
# By payer and policy: a minute, and the number of nodes published in it.
RateCounts = dict[tuple[str, str], tuple[int, int]]


def count_nodes(command: PublishWorkflow, batch: Batch) -> RateCounts:
    """Return the counts of the payer's rate policies with the nodes of a publish.

    The caller stores them in `batch.cache.rates` once the publish is accepted.

    Raises: Refusal(RATE_LIMITED).
    """
    minute, counts = batch.now_ms // MINUTE_MS, RateCounts()
    for rate in command.rates:
        key, most = (command.payer_did, rate.policy_id), rate.limit_per_minute
        known_minute, known = batch.cache.rates.get(key, (minute, 0))
        nodes = rate.nodes + (known if known_minute == minute else 0)
        if nodes > most:
            raise Refusal(
                ErrorCode.RATE_LIMITED,
                f"the policy {rate.policy_id} (rate_limit) allows {most} nodes a minute; with this"
                f" workflow there would be {nodes}: publish it in the next minute, or with fewer"
                " nodes",
                retry_after_s=(MINUTE_MS - batch.now_ms % MINUTE_MS) // 1_000 + 1,
            )
        counts[key] = (minute, nodes)
    return counts


# Whether a viewer who is no administrator may see a subnet `s`.
IS_SHOWN: Final = """
    (s.policy_type <> 'private' OR s.owner_did = {viewer} OR EXISTS (
        SELECT FROM callboard.subnet_member m LEFT JOIN callboard.agent a ON a.did = m.did
        WHERE m.subnet_id = s.id AND m.status <> 'removed' AND {viewer} IN (m.did, a.owner_did)))
"""
_MAY_SEE: Final = f"(CAST(:viewer AS text) IS NULL OR {IS_SHOWN.format(viewer=':viewer')})"
_SUBNETS: Final = sql.text(
    f"""
    SELECT s.*,
        ARRAY(SELECT did FROM callboard.subnet_member
            WHERE subnet_id = s.id AND status <> 'removed' ORDER BY did) AS member_dids,
        ARRAY(SELECT did FROM callboard.subnet_member
            WHERE subnet_id = s.id AND status = 'joined' ORDER BY did) AS joined_dids
    FROM callboard.subnet s
    WHERE (CAST(:member AS text) IS NULL OR EXISTS (SELECT FROM callboard.subnet_member
            WHERE subnet_id = s.id AND did = :member AND status <> 'removed'))
        AND (CAST(:id AS text) IS NULL OR s.id = CAST(:id AS text))
        AND (CAST(:after AS text) IS NULL OR s.id > CAST(:after AS text))
        AND s.removed_ms IS NULL AND {_MAY_SEE}
    ORDER BY s.id LIMIT :limit OFFSET :offset
    """
).bindparams(sql.bindparam("viewer", type_=sql.Text), sql.bindparam("member", type_=sql.Text))
_POLICIES: Final = sql.text(
    f"""
    SELECT p.* FROM callboard.subnet_policy p JOIN callboard.subnet s ON s.id = p.subnet_id
    WHERE p.removed_ms IS NULL
        AND (CAST(:subnet AS text) IS NULL OR p.subnet_id = CAST(:subnet AS text))
        AND (CAST(:after AS text) IS NULL OR p.id > CAST(:after AS text))
        AND {_MAY_SEE}
    ORDER BY p.id LIMIT :limit OFFSET :offset
    """
).bindparams(sql.bindparam("viewer", type_=sql.Text))
_BINDING: Final = sql.text(
    """
    SELECT p.* FROM callboard.subnet_member m
        JOIN callboard.subnet_policy p ON p.subnet_id = m.subnet_id
    WHERE m.did = :did AND m.status = 'joined' AND p.removed_ms IS NULL ORDER BY p.id
    """
)
_JOINED: Final = sql.text(
    "SELECT FROM callboard.subnet_member WHERE subnet_id = :id AND did = :did AND status = 'joined'"
)


async def subnet_rows(
    reader: LedgerReader,
    viewer: str | None,
    *,
    subnet_id: str | None = None,
    member_did: str | None = None,
    after: str | None = None,
    **page: int,
) -> list[RowDict]:
    """Return subnets with `member_dids` and `joined_dids`, oldest first.

    Args:
        viewer: only subnets that this DID may see; None: an administrator, who sees all.
        subnet_id: only this subnet; None: all.
        member_did: only subnets in which this DID is listed or has joined; None: all.
        after: the last id of the previous page.
        page: `limit` and `offset`; without them, one subnet.
    """
    values = {"viewer": viewer, "id": subnet_id, "member": member_did, "after": after}
    return await reader.rows(_SUBNETS, {"limit": 1, "offset": 0, **values, **page})


async def policy_rows(
    reader: LedgerReader,
    viewer: str | None,
    *,
    subnet_id: str | None,
    after: str | None,
    **page: int,
) -> list[RowDict]:
    """Return policies of the subnets that a DID may see (None: of all subnets), oldest first."""
    values = {"viewer": viewer, "subnet": subnet_id, "after": after}
    return await reader.rows(_POLICIES, {**values, **page})


async def binding_policies(reader: LedgerReader, did: str) -> list[Policy]:
    """Return the policies of all subnets that a DID has joined."""
    return [policy_of(row) for row in await reader.rows(_BINDING, {"did": did})]


async def has_joined(reader: LedgerReader, subnet_id: str, did: str) -> bool:
    """Say whether a DID has joined a subnet."""
    return bool(await reader.rows(_JOINED, {"id": subnet_id, "did": did}))


def policy_of(row: RowDict) -> Policy:
    """Return the policy of a row."""
    return Policy(
        id=str(row["id"]),
        subnet_id=str(row["subnet_id"]),
        kind=PolicyType(row["type"]),
        capability=row["capability"],
        region=row["region"],
        limit_per_minute=row["limit_per_minute"],
    )


# Plans. The policies bind a DID only after it has joined. Only a DID that has joined sees the
# agents of a private subnet.

# Maximum subnets that one DID owns, because each owner process has all subnets in memory.
SUBNETS_MAX: Final = 20
# Maximum subnets that a DID may join.
JOINED_MAX: Final = 20
POLICIES_MAX: Final = 20

Change = RemoveSubnet | AddSubnetMember | RemoveSubnetMember | CreatePolicy | RemovePolicy

_OWNED: Final = """
SELECT count(*) FROM callboard.subnet WHERE owner_did = %(actor)s AND removed_ms IS NULL
"""
_CHANGED: Final = f"""
SELECT s.id, s.owner_did, s.policy_type,
    (SELECT status FROM callboard.subnet_member WHERE subnet_id = s.id AND did = %(did)s),
    {IS_SHOWN.format(viewer="%(actor)s")},
    (SELECT count(*) FROM callboard.subnet_member
        WHERE subnet_id = s.id AND status <> 'removed'),
    (SELECT count(*) FROM callboard.subnet_policy WHERE subnet_id = s.id AND removed_ms IS NULL),
    (SELECT count(*) FROM callboard.subnet_member WHERE did = %(did)s AND status = 'joined')
FROM callboard.subnet s WHERE s.removed_ms IS NULL AND s.id = {{id}}
"""
_BY_ID: Final = _CHANGED.format(id="%(id)s")
_BY_POLICY: Final = _CHANGED.format(
    id="(SELECT subnet_id FROM callboard.subnet_policy WHERE id = %(id)s AND removed_ms IS NULL)"
)


@dataclass(frozen=True, slots=True)
class KnownSubnet:
    """A subnet before a change, with the numbers of its members and policies.

    `status`: the status of the DID that the command adds or removes; None: it never was a member.
    `joined`: how many subnets this DID has joined. `is_shown`: the caller may see the subnet.
    """

    id: str
    owner_did: str
    type: str
    status: str | None
    is_shown: bool
    members: int
    policies: int
    joined: int


async def load_subnet(
    connection: Connection, command: Change, read_set: ReadSet
) -> KnownSubnet | None:
    """Return the subnet of a command, None if it does not exist."""
    did = getattr(command, "member_did", "")
    read_set.agent_dids.add(did)
    values = {"actor": command.actor_did, "did": did}
    if isinstance(command, RemovePolicy):
        rows = await fetch(connection, _BY_POLICY, {**values, "id": command.policy_id})
    else:
        named = command.policy if isinstance(command, CreatePolicy) else command
        rows = await fetch(connection, _BY_ID, {**values, "id": named.subnet_id})
    return KnownSubnet(*rows[0]) if rows else None


async def load_count(connection: Connection, command: CreateSubnet, read_set: ReadSet) -> int:
    """Return the number of subnets that the caller owns."""
    read_set.agent_dids |= set(command.member_dids)
    ((count,),) = await fetch(connection, _OWNED, {"actor": command.actor_did})
    return int(count)


@plans(CreateSubnet, load=load_count, outlives_credential=True)
def plan_create_subnet(command: CreateSubnet, batch: Batch) -> Result:
    """Store a subnet with its members."""
    actor_did, subnet_id, listed = command.actor_did, command.subnet_id, command.member_dids
    if batch.loaded >= SUBNETS_MAX:
        raise conflict(f"{actor_did} owns {batch.loaded} subnets, the maximum: remove one first")
    joined = {did for did in listed if _may_join(did, command, batch)}
    batch.store(SUBNETS, subnet_id, command, id=subnet_id, owner_did=actor_did)
    for did in listed:
        _put_member(subnet_id, did, "joined" if did in joined else "listed", batch)
    batch.is_directory_changed = True
    batch.record(
        AuditEventType.SUBNET_CREATED,
        ("subnet", subnet_id),
        ownerDid=actor_did,
        name=command.name,
        policyType=command.policy_type.value,
        members=len(listed),
        joined=len(joined),
    )
    return {}


@plans(RemoveSubnet, load=load_subnet, outlives_credential=True)
def plan_remove_subnet(command: RemoveSubnet, batch: Batch) -> Result:
    """Remove a subnet with its members and policies. Agents in a private subnet stay hidden."""
    known = _visible(command, batch)
    if not command.may_act_for(known.owner_did):
        raise _forbidden(known, "removes it")
    place = {"subnet_id": known.id}
    batch.put(ENDED_MEMBERS, known.id, {**place, "changed_by_did": command.actor_did})
    batch.put(ENDED_POLICIES, known.id, place)
    batch.put(REMOVED_SUBNETS, known.id, {"id": known.id})
    counts = {"members": known.members, "policies": known.policies}
    _changed(known, AuditEventType.SUBNET_REMOVED, batch, **counts)
    return {}


@plans(AddSubnetMember, load=load_subnet, outlives_credential=True)
def plan_add_member(command: AddSubnetMember, batch: Batch) -> Result:
    """List a DID, or let it join."""
    known, did = _visible(command, batch), command.member_did
    may_join = _may_join(did, command, batch)
    is_joined = may_join or known.status == "joined"
    if not command.may_act_for(known.owner_did):
        if not may_join:
            raise _forbidden(known, "adds others")
        if known.type != SubnetType.PUBLIC and known.status not in ("listed", "joined"):
            detail = f"the subnet {known.id} is {known.type}: its owner must list {did} first"
            raise forbidden(detail)
    if known.status in (None, "removed") and known.members >= MEMBERS_MAX:
        detail = f"the subnet {known.id} has {known.members} members, the maximum: remove one first"
        raise conflict(detail)
    if is_joined and known.status != "joined" and known.joined >= JOINED_MAX:
        raise conflict(f"{did} has joined {known.joined} subnets, the maximum: leave one first")
    status = "joined" if is_joined else "listed"
    if status != known.status:
        _put_member(known.id, did, status, batch)
        event = AuditEventType.SUBNET_MEMBER_ADDED
        _changed(known, event, batch, memberDid=did, status=status)
    return {"isJoined": is_joined}


@plans(RemoveSubnetMember, load=load_subnet, outlives_credential=True)
def plan_remove_member(command: RemoveSubnetMember, batch: Batch) -> Result:
    """Remove a DID, whether it has joined or was only listed."""
    known, did = _visible(command, batch), command.member_did
    if not (command.may_act_for(known.owner_did) or _may_join(did, command, batch)):
        raise _forbidden(known, "removes others")
    if known.status in (None, "removed"):
        raise not_found(f"the member {did} of the subnet is not known")
    _put_member(known.id, did, "removed", batch)
    _changed(known, AuditEventType.SUBNET_MEMBER_REMOVED, batch, memberDid=did)
    return {}


@plans(CreatePolicy, load=load_subnet, outlives_credential=True)
def plan_create_policy(command: CreatePolicy, batch: Batch) -> Result:
    """Store a policy."""
    known, policy = _visible(command, batch), command.policy
    if not command.may_act_for(known.owner_did):
        raise _forbidden(known, "sets its policies")
    if known.policies >= POLICIES_MAX:
        raise conflict(
            f"the subnet {known.id} has {known.policies} policies, the maximum: remove one first"
        )
    made = {"subnet_id": known.id, "type": policy.kind.value, "created_by_did": command.actor_did}
    batch.store(SUBNET_POLICIES, policy.id, policy, **made)
    row = batch.row(SUBNET_POLICIES, policy.id) or {}
    terms = {name: row[name] for name in ("type", "capability", "region", "limit_per_minute")}
    given = {name: value for name, value in terms.items() if value is not None}
    _changed(known, AuditEventType.SUBNET_POLICY_CREATED, batch, policyId=policy.id, **given)
    return {"createdMs": batch.now_ms}


@plans(RemovePolicy, load=load_subnet, outlives_credential=True)
def plan_remove_policy(command: RemovePolicy, batch: Batch) -> Result:
    """Remove a policy."""
    known = _visible(command, batch)
    if not command.may_act_for(known.owner_did):
        raise _forbidden(known, "sets its policies")
    batch.put(REMOVED_POLICIES, command.policy_id, {"id": command.policy_id})
    _changed(known, AuditEventType.SUBNET_POLICY_REMOVED, batch, policyId=command.policy_id)
    return {}


def _visible(command: Change, batch: Batch) -> KnownSubnet:
    """Return the subnet of a command, if the caller may know of it.

    Raises: Refusal(NOT_FOUND).
    """
    known: KnownSubnet | None = batch.loaded
    if known is None or not (known.is_shown or command.is_admin):
        what = f"the policy {command.policy_id}" if isinstance(command, RemovePolicy) else ""
        raise not_found(f"{what or 'the subnet'} is not known")
    return known


def _may_join(did: str, command: CreateSubnet | Change, batch: Batch) -> bool:
    """Say whether the caller may make a DID join: the caller's own DID, the DID of an agent of the
    caller, or any DID as an administrator."""
    agent = batch.cache.agents.get(did)
    return command.may_act_for(did) or (agent is not None and command.may_act_for(agent.owner_did))


def _forbidden(known: KnownSubnet, does: str) -> Refusal:
    return forbidden(f"only the owner of the subnet {known.id} {does}")


def _put_member(subnet_id: str, did: str, status: str, batch: Batch) -> None:
    by = batch.actor_did
    row = {"subnet_id": subnet_id, "did": did, "status": status, "changed_by_did": by}
    batch.put(SUBNET_MEMBERS, (subnet_id, did), row)


def _changed(known: KnownSubnet, event: AuditEventType, batch: Batch, **payload: Any) -> None:
    """Record a change of a subnet; all owner processes then load it."""
    batch.put(CHANGED_SUBNETS, known.id, {"id": known.id})
    batch.is_directory_changed = True
    batch.record(event, ("subnet", known.id), ownerDid=known.owner_did, **payload)
