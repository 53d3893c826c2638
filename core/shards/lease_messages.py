"""The messages of a lease renewal, which each member sends to the ledger twice a second.

The reply has the member's lease and the map of shards. `leases.py` has the rules.
Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from enum import StrEnum

from core.message import Message

# The cluster version that a process assumes until a ledger sends one: the first code with shards.
FIRST_VERSION = 2


class MemberState(StrEnum):
    """The states of a member. GONE is final; a restarted process is a new member."""

    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Renewal(Message, frozen=True, kw_only=True):
    """A request that renews a member's lease; a replica sends it without `member` to get the map.

    `load`: the number of unfinished workflows that the member drives. `map_version`: the version of
    the map that the sender knows; 0: none. If the map has not changed, it is not sent again.
    `open_calls`: the number of calls to agents that would be lost if the process ended.
    `is_drained`: the member is DRAINING, holds no shard and has no open call. `seen_epoch`,
    `seen_audit_id`: the highest values in the leases that the member has received. A ledger that
    has lower values stops, because it has lost commits or was replaced.
    """

    member: str
    load: int = 0
    map_version: int = 0
    open_calls: int = 0
    is_drained: bool = False
    seen_epoch: int = 0
    seen_audit_id: int = 0


class MemberView(Message, frozen=True, kw_only=True):
    """The ledger's view of a member that is not GONE.

    `is_live`: the ledger treats the member's lease as valid. `load`, `open_calls`, `is_drained`:
    from the last renewal of the member.
    """

    member: str
    machine: str
    address: str
    version: str
    state: MemberState
    load: int = 0
    is_live: bool = True
    open_calls: int = 0
    is_drained: bool = False


class HeldShard(Message, frozen=True):
    """The holder of a shard and the shard's epoch. `member`: the holder's id, "" without one."""

    member: str
    epoch: int


class Lease(Message, frozen=True, kw_only=True):
    """The reply to a `Renewal`; it has only committed values.

    `is_known`: the member is registered, is not GONE, and no other member has joined at its
    address. If False, the member has lost all its shards and must end. True if the renewal names no
    member. `map_version`: the version of the map, which only grows.
    `shards`: the holder of each shard; empty if the sender already knows this version of the map.
    `cluster_version`: the code version that all members and the ledger understand.
    `epoch`: the epoch of the ledger. `audit_id`: the id of the newest committed audit entry.
    """

    is_known: bool
    map_version: int
    members: tuple[MemberView, ...]
    shards: tuple[HeldShard, ...] = ()
    cluster_version: int = FIRST_VERSION
    epoch: int = 0
    audit_id: int = 0
