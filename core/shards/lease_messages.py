"""What a member tells the ledger twice a second, and what it hears: its lease and the shards' map.

Values only; `leases.py` decides. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from enum import StrEnum

from core.message import Message

# Of the code that does not tell its ledger's answer: the first one with shards.
FIRST_VERSION = 2


class MemberState(StrEnum):
    """The states of a member; nobody comes back from GONE, a new process is a new member."""

    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Renewal(Message, frozen=True, kw_only=True):
    """A member lives, or, with an empty `member`, a replica asks for the map.

    `load`: how many unfinished workflows it drives. `open_calls`: how many calls of agents would be
    lost with its process now. `is_drained`: it is DRAINING, holds nothing and has no open call.
    `map_version`: of the map that it knows, 0: none; a map that has not changed since is not sent
    again.
    `seen_epoch`, `seen_audit_id`: the highest of each that leases have told it; a ledger that is
    behind them stops.
    """

    member: str
    load: int = 0
    map_version: int = 0
    open_calls: int = 0
    is_drained: bool = False
    seen_epoch: int = 0
    seen_audit_id: int = 0


class MemberView(Message, frozen=True, kw_only=True):
    """A member that is not GONE, as the ledger knows it.

    `is_live`: its lease has not expired. `load`, `open_calls`, `is_drained`: as it has last said
    itself.
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
    """Who holds a shard, "" for no member, under which epoch."""

    member: str
    epoch: int


class Lease(Message, frozen=True, kw_only=True):
    """The answer to a `Renewal`, of what is committed.

    `is_known`: the member is registered, not GONE, and no other has joined at its address; else it
    has lost everything and must end. True where the question named no member.
    `map_version`: of the map; it only grows.
    `shards`: by shard, all of them; empty when the map is the one that was known already.
    `cluster_version`: of the code that every member and the ledger understand.
    `epoch`: the ledger's. `audit_id`: of the newest audit entry that it has committed.
    """

    is_known: bool
    map_version: int
    members: tuple[MemberView, ...]
    shards: tuple[HeldShard, ...] = ()
    cluster_version: int = FIRST_VERSION
    epoch: int = 0
    audit_id: int = 0
