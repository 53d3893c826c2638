"""Members and shards of the cluster: members join and change state, and shards move between them.

Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Final

from core.errors import ErrorCode
from core.records.audit import AuditEventType
from core.shards.lease_messages import HeldShard, MemberState
from core.shards.shard import SHARDS
from ledger.commands import Command
from ledger.tables.cluster_tables import MEMBERS as MEMBER_ROWS
from ledger.tables.cluster_tables import SHARDS as SHARD_ROWS
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, invalid
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.state_cache import KnownMember, StateCache

# The map is the list of members and of the holders of shards. Results contain `mapVersion`, the
# version of the first map with the command's change: the id of the command's audit entry. If the
# command has changed nothing, `mapVersion` is the version of the newest map. The only refusal that
# is stored is a CONFLICT of `GiveShards`.


class JoinCluster(Command, frozen=True, kw_only=True):
    """Register a process as a new member. Earlier members at the same address have ended.

    The member is READY, or DRAINING if its predecessor was DRAINING, because only an operator
    resumes a drained machine. `member`: an id that no member has had. `machine`: Ray's id of the
    machine.
    `address`: the actor's name, the same for every process at this place. `version`: the version of
    the code.
    A predecessor loses its lease when this command is committed. If it holds no shards, it is GONE
    at once, otherwise when its last shard is taken.
    Rejections: CONFLICT if the id was a member's before; OVERLOADED with {"retryAfterS"} when the
    cluster is full. Result: {"mapVersion": int}.
    """

    member: str
    machine: str
    address: str
    version: str


class ChangeMember(Command, frozen=True, kw_only=True):
    """Change a member's state: it drains (DRAINING), takes work again (READY), or has ended (GONE).

    If the member already has the state, nothing changes. Rejections: NOT_FOUND; CONFLICT if the
    member is already GONE; for GONE, if it holds shards; for DRAINING, if no other member can hold
    shards. Result: {"mapVersion": int}.
    """

    actor_did: str
    member: str
    state: MemberState


class TakeShards(Command, frozen=True, kw_only=True):
    """Take shards that no live member holds.

    `shards`: (shard, epoch in which the member saw it) pairs. A shard is taken if its epoch is
    unchanged, and it has no holder or its holder's lease has expired or ended. The epoch of a taken
    shard rises by one. Other shards stay as they are. A member that loses its last shard is GONE,
    unless it drains and was not replaced: the next member at its address must drain too.
    Rejections: FORBIDDEN if the taker is not READY or not live; INVALID_REQUEST. Result: {"taken":
    {shard as text: epoch}, "mapVersion": int}. Not stored under its key if nothing was taken.
    """

    member: str
    shards: tuple[tuple[int, int], ...]


class GiveShards(Command, frozen=True, kw_only=True):
    """Give shards of one member to another.

    `shards`: (shard, its epoch) pairs. A shard is given if `member` holds it in that epoch. The
    epoch of a given shard rises by one. A giver that was replaced at its address is GONE when it
    has given its last shard.
    Rejections: CONFLICT when the recipient is not READY, is not live, or is the giver itself;
    INVALID_REQUEST. Result: {"given": [shards], "mapVersion": int}. A CONFLICT is stored under the
    command's key, because the giver then continues with the shard. The result is not stored if
    nothing was given.
    """

    member: str
    shards: tuple[tuple[int, int], ...]
    to: str


# Plans. A shard has one holder at a time, and an epoch that rises with each move. A command with an
# older epoch is stale (`ledger/writer/plan.py`). The leases say whether a member is live. They are
# not stored in the database, and change only between batches.

# Maximum members that are not GONE; each reply to a renewal lists all of them.
MEMBERS_MAX: Final = 64
_ROOM_RETRY_S: Final = 5


@plans(JoinCluster, reads=keys_of(member_ids="member"), reuses_key=True)
def plan_join(command: JoinCluster, batch: Batch) -> Result:
    """Register a new member as READY, or as DRAINING if the newest member at its address was
    DRAINING.

    Earlier members at the address have ended: those without shards are GONE with this command, the
    others when their last shard is taken.
    """
    cache, batch.actor_did = batch.cache, command.member
    if command.member in cache.members or command.member in cache.gone_members:
        detail = f"there was a member {command.member!r} before: each start has an id of its own"
        raise conflict(detail, is_stored=False)
    before = [one for one in cache.members.values() if one.address == command.address]
    idle = [member for member in cache.members if not _holds(member, cache)]
    ended = [member for member in idle if cache.members[member].address == command.address]
    if len(cache.members) - len(ended) >= MEMBERS_MAX:
        # Members without shards whose lease has expired must make room, because no later
        # `TakeShards` would end them.
        ended = [one for one in idle if one in ended or not cache.leases.is_live(one)]
    if len(cache.members) - len(ended) >= MEMBERS_MAX:
        raise Refusal(
            ErrorCode.OVERLOADED,
            f"the cluster has {len(cache.members)} members, at most {MEMBERS_MAX} may be in it",
            retry_after_s=_ROOM_RETRY_S,
        )
    joined_ms = max([batch.now_ms, *(one.joined_ms + 1 for one in before)])
    latest = max(before, key=lambda one: one.joined_ms, default=None)
    is_drained = latest is not None and latest.state is MemberState.DRAINING
    state = MemberState.DRAINING if is_drained else MemberState.READY
    joined = KnownMember(command.machine, command.address, command.version, state, joined_ms)
    _store_member(command.member, joined, batch)
    batch.record(
        AuditEventType.MEMBER_JOINED,
        ("member", command.member),
        machine=command.machine,
        address=command.address,
        version=command.version,
        state=state.value,
    )
    _end_members(ended, batch)
    return _moved({}, batch)


@plans(ChangeMember, reads=keys_of(member_ids="member"), reuses_key=True)
def plan_change_member(command: ChangeMember, batch: Batch) -> Result:
    """Change a member's state to DRAINING, READY or GONE."""
    cache = batch.cache
    known = cache.members.get(command.member)
    if known is None:
        is_gone = command.member in cache.gone_members
        raise Refusal(
            ErrorCode.CONFLICT if is_gone else ErrorCode.NOT_FOUND,
            f"the member {command.member!r} is {'gone' if is_gone else 'not known'}",
            is_stored=False,
        )
    if known.state is command.state:
        return {"mapVersion": cache.map_version}
    if command.state is MemberState.GONE:
        if _holds(command.member, cache):
            detail = f"the member {command.member!r} holds shards: it gives them first"
            raise conflict(detail, is_stored=False)
        _end_members([command.member], batch)
    elif command.state is MemberState.DRAINING and not _has_other_holder(command.member, cache):
        detail = f"no member but {command.member!r} is ready and lives: its shards would stay"
        raise conflict(detail, is_stored=False)
    else:
        _change(command.member, known, command.state, batch)
    return _moved({}, batch)


@plans(TakeShards, reuses_key=True)
def plan_take(command: TakeShards, batch: Batch) -> Result:
    """Move shards that no live member holds to a READY member."""
    cache, batch.actor_did = batch.cache, command.member
    _check_shards(command.shards)
    if not _can_hold(command.member, cache):
        detail = f"the member {command.member!r} takes no shards: it is not ready, or expired"
        raise forbidden(detail, is_stored=False)
    holders = {cache.shards[shard].member for shard, _ in command.shards}
    living = {member for member in holders if member and not cache.leases.may_take(member)}
    taken: dict[int, int] = {}
    losers: set[str] = set()
    for shard, epoch in command.shards:
        held = cache.shards[shard]
        # A shard of the taker itself is skipped; so is a shard that the command names twice.
        if held.epoch == epoch and held.member not in living and held.member != command.member:
            _store_shard(shard, HeldShard(command.member, epoch + 1), batch)
            taken[shard] = epoch + 1
            losers.add(held.member)
    epochs = {str(shard): epoch for shard, epoch in taken.items()}
    if not taken:
        return _unchanged(command, {"taken": {}}, batch)
    batch.record(
        AuditEventType.SHARDS_TAKEN,
        ("member", command.member),
        epochs=epochs,
        **{"from": sorted(losers - {""})},
    )
    _end_members(_emptied(losers, cache), batch)
    return _moved({"taken": epochs}, batch)


@plans(GiveShards, reuses_key=True)
def plan_give(command: GiveShards, batch: Batch) -> Result:
    """Move shards from the member that holds them to a READY member."""
    cache, batch.actor_did = batch.cache, command.member
    _check_shards(command.shards)
    if command.to == command.member or not _can_hold(command.to, cache):
        detail = f"the member {command.to!r} is given no shards: it is not ready, or expired"
        # Stored, because the giver continues with the shard. A late copy of this command must not
        # move the shard, even if the recipient can hold it by then.
        raise conflict(detail)
    given: dict[int, int] = {}
    for shard, epoch in command.shards:
        if cache.shards[shard] == HeldShard(command.member, epoch):
            _store_shard(shard, HeldShard(command.to, epoch + 1), batch)
            given[shard] = epoch + 1
    if not given:
        return _unchanged(command, {"given": []}, batch)
    batch.record(
        AuditEventType.SHARDS_GIVEN,
        ("member", command.member),
        epochs={str(shard): epoch for shard, epoch in given.items()},
        to=command.to,
    )
    if _is_replaced(command.member, cache) and not _holds(command.member, cache):
        _end_members([command.member], batch)
    return _moved({"given": list(given)}, batch)


def _check_shards(shards: tuple[tuple[int, int], ...]) -> None:
    if not 0 < len(shards) <= SHARDS or any(not 0 <= shard < SHARDS for shard, _ in shards):
        detail = f"got {len(shards)} shards, expected 1 to {SHARDS}, each from 0 to {SHARDS - 1}"
        raise invalid(detail, is_stored=False)


def _can_hold(member: str, cache: StateCache) -> bool:
    known = cache.members.get(member)
    is_ready = known is not None and known.state is MemberState.READY
    return is_ready and cache.leases.is_live(member)


def _has_other_holder(member: str, cache: StateCache) -> bool:
    return any(_can_hold(other, cache) for other in cache.members if other != member)


def _emptied(losers: Collection[str], cache: StateCache) -> list[str]:
    """Return the members that hold no shard any more and are therefore GONE.

    A draining member is left out: the next member at its address must learn that it drains.
    """
    empty = [one for one in sorted(losers) if one in cache.members and not _holds(one, cache)]
    draining = MemberState.DRAINING
    return [m for m in empty if cache.members[m].state is not draining or _is_replaced(m, cache)]


def _holds(member: str, cache: StateCache) -> bool:
    return any(held.member == member for held in cache.shards)


def _is_replaced(member: str, cache: StateCache) -> bool:
    """Say whether another member has joined at a member's address later."""
    known = cache.members.get(member)
    return known is not None and any(
        other.address == known.address and other.joined_ms > known.joined_ms
        for other in cache.members.values()
    )


def _end_members(members: Collection[str], batch: Batch) -> None:
    """Set members that hold no shards to GONE."""
    cache = batch.cache
    for member in members:
        _change(member, cache.members[member], MemberState.GONE, batch)
        del cache.members[member]
        cache.gone_members.add(member)


def _change(member: str, known: KnownMember, state: MemberState, batch: Batch) -> None:
    _store_member(member, replace(known, state=state), batch)
    batch.record(AuditEventType.MEMBER_CHANGED, ("member", member), state=state.value)


def _store_member(member: str, known: KnownMember, batch: Batch) -> None:
    batch.cache.members[member] = known
    batch.put(MEMBER_ROWS, member, {"id": member, **asdict(known)})


def _store_shard(shard: int, held: HeldShard, batch: Batch) -> None:
    batch.cache.shards[shard] = held
    batch.put(SHARD_ROWS, shard, {"id": shard, "member": held.member, "epoch": held.epoch})


def _moved(result: Result, batch: Batch) -> Result:
    """Return the result of a command that has changed the map; its audit id is the new version."""
    assert batch.audit_id is not None, result
    batch.cache.map_version = batch.audit_id
    return {**result, "mapVersion": batch.audit_id}


def _unchanged(command: TakeShards | GiveShards, result: Result, batch: Batch) -> Result:
    """Return the result of a command that moved nothing. It is not stored, so a repeat is planned
    again."""
    batch.untraced.add(command.key)
    return {**result, "mapVersion": batch.cache.map_version}
