"""Commands of members: one registers, changes its state, takes shards, gives shards.

Plain values, as `ledger/commands.py` says. `mapVersion` is the version of the first map that knows
what the command has changed: the id of its audit entry; of the newest map, if it has changed
nothing. No refusal is stored. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from core.shards.lease_messages import MemberState
from ledger.commands import Command


class JoinCluster(Command, frozen=True, kw_only=True):
    """A process registers as a new member; what was at its address before has ended.

    It is READY, or DRAINING where its predecessor was: who drains a machine resumes it.
    `member`: an id that no member has had. `machine`: Ray's id of it. `address`: the actor's name,
    the same for each process that is started there. `version`: of the code. The predecessor at the
    address loses its lease with this command's commit; without shards it is GONE with it, else with
    the last of them. Rejections: CONFLICT for an id that was a member's before; OVERLOADED,
    {"retryAfterS"}, when the cluster is full. Result: {"mapVersion": int}.
    """

    member: str
    machine: str
    address: str
    version: str


class ChangeMember(Command, frozen=True, kw_only=True):
    """A member drains (DRAINING), takes work again (READY), or has ended (GONE).

    A state that it has already changes nothing. Rejections: NOT_FOUND; CONFLICT for one that is
    GONE already, or that is to be GONE and holds shards, or that is to drain while no other member
    could take its shards. Result: {"mapVersion": int}.
    """

    actor_did: str
    member: str
    state: MemberState


class TakeShards(Command, frozen=True, kw_only=True):
    """A member takes shards that no living member holds.

    `shards`: (shard, the epoch that it was seen under). Taken is each that is still under that
    epoch and held by no member, or by one whose lease has expired or ended; its epoch grows by one.
    The others stay as they are. A member that loses its last shard this way is GONE, unless it
    drains: then its successor at its address is to drain as well. Rejections: FORBIDDEN for a
    member that is not READY or does not live; INVALID_REQUEST. Result: {"taken": {shard as text:
    epoch}, "mapVersion": int}. Not stored under its key when nothing was taken.
    """

    member: str
    shards: tuple[tuple[int, int], ...]


class GiveShards(Command, frozen=True, kw_only=True):
    """A member gives shards that it holds to another.

    `shards`: (shard, its epoch). Given is each that this member holds under that epoch; its epoch
    grows by one. A member at whose address another has joined is GONE with its last shard.
    Rejections: CONFLICT when the recipient is not READY, does not live, or is the member itself;
    INVALID_REQUEST. Result: {"given": [shards], "mapVersion": int}. A CONFLICT is stored under its
    key, because the giver goes on with the shard then; not stored when nothing was given.
    """

    member: str
    shards: tuple[tuple[int, int], ...]
    to: str
