"""Members and shards of the simulation's ledger, as `ledger/shards/shard_plan.py` plans them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.errors import ErrorCode
from core.shards.lease_messages import HeldShard, MemberState
from core.shards.shard import SHARDS, shard_of
from ledger.shards.shard_commands import ChangeMember, GiveShards, JoinCluster, TakeShards
from tests.simulation.money_model import Refused

ShardCommand = JoinCluster | ChangeMember | TakeShards | GiveShards


class ShardModel:
    """Who is a member, and who holds which shard. `is_live`: whether a member's lease stands."""

    def __init__(self) -> None:
        self.members: dict[str, tuple[str, MemberState]] = {}  # address and state
        self.shards = [HeldShard("", 0)] * SHARDS
        self.version = 0
        self.is_live: Callable[[str], bool] = lambda member: True
        self.ended: set[str] = set()

    def holds(self, member: str, workflow_id: str, epoch: int) -> bool:
        """Say whether a command of a workflow is of the shard's holder."""
        return self.shards[shard_of(workflow_id)] == HeldShard(member, epoch)

    def holder_of(self, workflow_id: str) -> str:
        """Return the member that holds a workflow's shard, "" for none."""
        return self.shards[shard_of(workflow_id)].member

    def apply(self, command: ShardCommand) -> dict[str, Any]:
        """Apply a command; return its result."""
        self.version += 1
        version = {"mapVersion": self.version}
        match command:
            case JoinCluster():
                same = [m for m, (at, _) in self.members.items() if at == command.address]
                self.ended.update(same)
                self.members[command.member] = (command.address, MemberState.READY)
                self._forget_idle()
                return version
            case ChangeMember(member=member, state=state):
                if member not in self.members:
                    raise Refused(ErrorCode.NOT_FOUND, "no member")
                self.members[member] = (self.members[member][0], state)
                return version
            case TakeShards():
                return {"taken": self._take(command), **version}
            case GiveShards():
                return {"given": self._give(command), **version}

    def _lives(self, member: str) -> bool:
        return member in self.members and member not in self.ended and self.is_live(member)

    def _can_hold(self, member: str) -> bool:
        return self._lives(member) and self.members[member][1] is MemberState.READY

    def _take(self, command: TakeShards) -> dict[str, int]:
        if not self._can_hold(command.member):
            raise Refused(ErrorCode.FORBIDDEN, "not ready")
        taken = {}
        for shard, epoch in command.shards:
            held = self.shards[shard]
            is_free = held.member != command.member and not self._lives(held.member)
            if held.epoch == epoch and is_free:
                self.shards[shard] = HeldShard(command.member, epoch + 1)
                taken[str(shard)] = epoch + 1
        self._forget_idle()
        return taken

    def _give(self, command: GiveShards) -> list[int]:
        if not self._can_hold(command.to):
            raise Refused(ErrorCode.CONFLICT, "not ready")
        given = [n for n, e in command.shards if self.shards[n] == HeldShard(command.member, e)]
        for shard in given:
            self.shards[shard] = HeldShard(command.to, self.shards[shard].epoch + 1)
        return given

    def _forget_idle(self) -> None:
        holding = {held.member for held in self.shards}
        for member in self.ended - holding:
            self.members.pop(member, None)
