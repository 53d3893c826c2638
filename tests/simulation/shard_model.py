"""Members and shards as the ledger's model knows them.

Says what `ledger/features/shards.py` says, written again on purpose. A world gives it the leases
(`is_live`), and lets them follow `committed` after each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.errors import ErrorCode
from core.shards.lease_messages import HeldShard, MemberState
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.member_leases import CommittedCluster
from ledger.features.shards import ChangeMember, GiveShards, JoinCluster, TakeShards
from ledger.writer.state_cache import KnownMember
from tests.simulation.money_model import Refused

SHARDS, MEMBERS_MAX = 256, 64
ShardCommand = JoinCluster | ChangeMember | TakeShards | GiveShards


class BadMove(Exception):
    """A command of a member that is refused or changes nothing; nothing of it is stored."""

    def __init__(self, code: ErrorCode | None, result: dict[str, Any] | None = None) -> None:
        super().__init__(code, result)
        status = OutcomeStatus.APPLIED if code is None else OutcomeStatus.REJECTED
        self.outcome = Outcome(status, result or {}, code)


class ShardModel:
    """`members`: those that are not GONE; `gone`: the others; `holders`: by shard; `version`: grows
    with each change."""

    def __init__(self) -> None:
        self.members: dict[str, KnownMember] = {}
        self.gone: set[str] = set()
        self.holders = [HeldShard("", 0) for _ in range(SHARDS)]
        self.version = 0
        self.is_live: Callable[[str], bool] = lambda _: True

    def committed(self) -> CommittedCluster:
        """Return the map that renewals are answered with."""
        return CommittedCluster(self.version, dict(self.members), tuple(self.holders))

    def is_current(self, workflow_id: str, member: str, epoch: int) -> bool:
        """Say whether a workflow's shard is this member's, under this epoch."""
        holder = self.holders[int(workflow_id.replace("-", "")[14:16], 16)]
        return member != "" and (holder.member, holder.epoch) == (member, epoch)

    def apply(self, command: ShardCommand, now_ms: int) -> dict[str, Any]:
        """Apply a command of a member; return its result.

        Raises:
            BadMove: it is refused, or nothing is moved.
        """
        match command:
            case JoinCluster():
                self._join(command, now_ms)
                result: dict[str, Any] = {}
            case ChangeMember():
                if not self._change(command):
                    return {"mapVersion": self.version}
                result = {}
            case TakeShards():
                result = {"taken": {str(shard): epoch for shard, epoch in self._take(command)}}
            case GiveShards():
                result = {"given": self._give(command)}
        self.version += 1
        return {**result, "mapVersion": self.version}

    def _held_by(self, member: str) -> int:
        return sum(holder.member == member for holder in self.holders)

    def _end(self, member: str) -> None:
        del self.members[member]
        self.gone.add(member)

    def _join(self, command: JoinCluster, now_ms: int) -> None:
        if command.member in self.gone or command.member in self.members:
            raise BadMove(ErrorCode.CONFLICT)
        joined_ms, over, spare = now_ms, [], []
        there = [known for known in self.members.values() if known.address == command.address]
        there.sort(key=lambda known: known.joined_ms)
        # Who drains a machine says when it takes work again, not a process that ends.
        stays = bool(there) and there[-1].state is MemberState.DRAINING
        state = MemberState.DRAINING if stays else MemberState.READY
        for name, known in self.members.items():
            if known.address == command.address:
                joined_ms = max(joined_ms, known.joined_ms + 1)
            if self._held_by(name) == 0:
                if known.address == command.address:
                    over.append(name)
                elif not self.is_live(name):
                    spare.append(name)
        if len(self.members) - len(over) == MEMBERS_MAX:
            over += spare
        if len(self.members) - len(over) == MEMBERS_MAX:
            raise BadMove(ErrorCode.OVERLOADED)
        for name in over:
            self._end(name)
        self.members[command.member] = KnownMember(
            command.machine, command.address, command.version, state, joined_ms
        )

    def _change(self, command: ChangeMember) -> bool:
        if command.member in self.gone:
            raise BadMove(ErrorCode.CONFLICT)
        if command.member not in self.members:
            raise BadMove(ErrorCode.NOT_FOUND)
        known = self.members[command.member]
        if command.state is MemberState.GONE:
            if self._held_by(command.member):
                raise BadMove(ErrorCode.CONFLICT)
            self._end(command.member)
        elif known.state is command.state:
            return False
        elif command.state is MemberState.DRAINING and not any(
            self._can_hold(name) for name in set(self.members) - {command.member}
        ):
            raise BadMove(ErrorCode.CONFLICT)
        else:
            self.members[command.member] = KnownMember(
                known.machine, known.address, known.version, command.state, known.joined_ms
            )
        return True

    def _take(self, command: TakeShards) -> list[tuple[int, int]]:
        self._check(command)
        if not self._can_hold(command.member):
            raise BadMove(ErrorCode.FORBIDDEN)
        before = {name for name in self.members if self._held_by(name)}
        dead = {name for name in before if not self.is_live(name)} - {command.member}
        taken = []
        for shard, epoch in command.shards:
            holder = self.holders[shard]
            if holder.epoch == epoch and (holder.member == "" or holder.member in dead):
                self.holders[shard] = HeldShard(command.member, epoch + 1)
                taken.append((shard, epoch + 1))
        if not taken:
            raise BadMove(None, {"taken": {}, "mapVersion": self.version})
        replaced = self.committed().replaced()
        for name in before:
            drains = self.members[name].state is MemberState.DRAINING
            if self._held_by(name) == 0 and (not drains or name in replaced):
                self._end(name)
        return taken

    def _give(self, command: GiveShards) -> list[int]:
        self._check(command)
        if command.to == command.member or not self._can_hold(command.to):
            raise Refused(ErrorCode.CONFLICT, "the recipient cannot hold shards")
        given = []
        for shard, epoch in command.shards:
            if self.holders[shard] == HeldShard(command.member, epoch):
                self.holders[shard] = HeldShard(command.to, epoch + 1)
                given.append(shard)
        if not given:
            raise BadMove(None, {"given": [], "mapVersion": self.version})
        is_replaced = command.member in self.committed().replaced()
        if is_replaced and self._held_by(command.member) == 0:
            self._end(command.member)
        return given

    def _can_hold(self, name: str) -> bool:
        known = self.members.get(name)
        return known is not None and known.state is MemberState.READY and self.is_live(name)

    def _check(self, command: TakeShards | GiveShards) -> None:
        shards = [shard for shard, _ in command.shards]
        if not 1 <= len(shards) <= SHARDS or min(shards) < 0 or max(shards) >= SHARDS:
            raise BadMove(ErrorCode.INVALID_REQUEST)
