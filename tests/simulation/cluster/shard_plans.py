"""What the commands of members and of a workflow's step do to the rows of a simulated cluster.

Says what their docstrings say (`ledger/shards/shard_commands.py`); the plans of the real ledger are
held to it by `tests/ledger/shards`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from core.errors import ErrorCode
from core.shards.lease_messages import HeldShard, MemberState
from core.shards.shard import shard_of
from ledger.commands import Outcome, OutcomeStatus
from ledger.shards.shard_commands import ChangeMember, GiveShards, JoinCluster, TakeShards
from tests.simulation.cluster.shard_rows import MemberRow, ShardRows


@dataclass(frozen=True, slots=True)
class StoreStep:
    """A workflow's attempt has ended and the next one is open."""

    key: str
    member: str
    shard_epoch: int
    workflow_id: str
    step: int


MemberCommand = JoinCluster | ChangeMember | TakeShards | GiveShards
ClusterCommand = MemberCommand | StoreStep


@dataclass(frozen=True, slots=True)
class Moved:
    """A shard has another member. `before`: who held it; `is_take`: else it was given."""

    shard: int
    before: str
    member: str
    epoch: int
    is_take: bool


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step was stored by a member under an epoch."""

    command: StoreStep


@dataclass(frozen=True, slots=True)
class Joined:
    """A member has registered. `ended`: whom it succeeds at its address."""

    member: str
    ended: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """A member is GONE."""

    member: str


ClusterEvent = Moved | Stepped | Joined | Gone


class _RefusedCommand(Exception):
    """A command is refused and stored under its key as that. `args`: the error."""


class Planning:
    """The commands of one batch, each of which sees those before it.

    Args:
        rows: changed here; the committed ones stay as they are.
        may_take: whether the lease of a member allows that its shards are taken.
        is_live: whether a member's lease has not expired.
    """

    def __init__(
        self, rows: ShardRows, may_take: Callable[[str], bool], is_live: Callable[[str], bool]
    ) -> None:
        self.rows = rows
        self.events: list[ClusterEvent] = []
        self._may_take = may_take
        self._is_live = is_live

    def plan(self, command: ClusterCommand) -> Outcome:
        """Apply a command to the rows; return its outcome."""
        rows = self.rows
        if isinstance(command, StoreStep):
            held = rows.shards[shard_of(command.workflow_id)]
            if (held.member, held.epoch) != (command.member, command.shard_epoch):
                return Outcome(OutcomeStatus.STALE)
        if (known := rows.known.get(command.key)) is not None:
            return Outcome(OutcomeStatus.REPEATED, known.result, known.error, known.detail)
        before = rows.version
        try:
            outcome = Outcome(OutcomeStatus.APPLIED, self._apply(command))
        except _RefusedCommand as refusal:
            outcome = Outcome(OutcomeStatus.REJECTED, {}, refusal.args[0], "refused")
        if not isinstance(command, TakeShards) or rows.version != before:
            rows.known[command.key] = outcome
        return outcome

    def _apply(self, command: ClusterCommand) -> dict[str, Any]:
        result: dict[str, Any] = {}
        match command:
            case StoreStep():
                assert self.rows.steps[command.workflow_id] == command.step - 1, command
                self.rows.steps[command.workflow_id] = command.step
                self.events.append(Stepped(command))
                return {}
            case JoinCluster():
                self._join(command)
            case ChangeMember():
                self._change(command)
            case TakeShards():
                result["taken"] = self._take(command)
            case GiveShards():
                result["given"] = self._give(command)
        return {**result, "mapVersion": self.rows.version}

    def _join(self, command: JoinCluster) -> None:
        rows = self.rows
        rows.version += 1
        ended = tuple(
            member
            for member, row in rows.members.items()
            if row.address == command.address and row.state is not MemberState.GONE
        )
        rows.members[command.member] = MemberRow(command.address, MemberState.READY, rows.version)
        self.events.append(Joined(command.member, ended))
        for member in ended:
            self._end_without_shards(member)

    def _change(self, command: ChangeMember) -> None:
        row = self.rows.members.get(command.member)
        if row is None:
            raise _RefusedCommand(ErrorCode.NOT_FOUND)
        is_end = command.state is MemberState.GONE
        if row.state is MemberState.GONE or (is_end and self.rows.has_shards(command.member)):
            raise _RefusedCommand(ErrorCode.CONFLICT)
        self._set_state(command.member, command.state)

    def _take(self, command: TakeShards) -> dict[str, int]:
        row = self.rows.members.get(command.member)
        if row is None or row.state is not MemberState.READY:
            raise _RefusedCommand(ErrorCode.FORBIDDEN)
        taken = {}
        for shard, epoch in command.shards:
            held = self.rows.shards[shard]
            is_own = held.member == command.member
            if held.epoch == epoch and not is_own and (not held.member or self._may_take(held.member)):
                self._move(shard, command.member, is_take=True)
                taken[str(shard)] = epoch + 1
                self._end_without_shards(held.member)
        return taken

    def _give(self, command: GiveShards) -> list[int]:
        recipient = self.rows.members.get(command.to)
        is_ready = recipient is not None and recipient.state is MemberState.READY
        if not is_ready or not self._is_live(command.to):
            raise _RefusedCommand(ErrorCode.CONFLICT)
        given = []
        for shard, epoch in command.shards:
            if self.rows.shards[shard] == HeldShard(command.member, epoch):
                self._move(shard, command.to, is_take=False)
                given.append(shard)
        return given

    def _move(self, shard: int, member: str, *, is_take: bool) -> None:
        rows, held = self.rows, self.rows.shards[shard]
        rows.version += 1
        rows.shards[shard] = HeldShard(member, held.epoch + 1)
        self.events.append(Moved(shard, held.member, member, held.epoch + 1, is_take))

    def _end_without_shards(self, member: str) -> None:
        """A member that is dead and holds nothing is GONE."""
        if member and not self.rows.has_shards(member):
            self._set_state(member, MemberState.GONE)

    def _set_state(self, member: str, state: MemberState) -> None:
        rows = self.rows
        rows.version += 1
        rows.members[member] = replace(rows.members[member], state=state)
        if state is MemberState.GONE:
            self.events.append(Gone(member))
