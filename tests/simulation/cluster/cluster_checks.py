"""What must hold in a simulated cluster at every event; numbered as in decision
tests-and-benchmarks.

The checks know the truth: who holds each shard by the rows that are committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from core.shards.lease_messages import HeldShard, MemberState
from core.shards.shard import shard_of
from tests.simulation.cluster.cluster_troubles import NEW
from tests.simulation.cluster.simulated_store import ClusterEvent, Moved, Stepped, form_of
from tests.simulation.violation import require

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.cluster.ledger_process import LedgerProcess
    from tests.simulation.cluster.member_process import MemberProcess
    from tests.simulation.cluster.shard_work import ShardRuns

# How long it may take until a member has heard of another, true time.
BOTH_MS = 6_000


class AgentCall(NamedTuple):
    """One attempt at its agent, who has sent it, and in whose share, as one of which owners."""

    process: MemberProcess
    workflow_id: str
    step: int
    place: ShardRuns
    owners: tuple[tuple[str, ...], tuple[str, ...]]


class ClusterChecks:
    """The checks of one world.

    Args:
        keeps_shards: no member that lives may lose a shard but by its own Give.
        sends_once: no attempt may be sent twice.
        is_upgrade: members of two versions come and go, and nothing else is wrong.
    """

    def __init__(
        self, world: ClusterWorld, *, keeps_shards: bool, sends_once: bool, is_upgrade: bool
    ) -> None:
        self._world = world
        self._keeps_shards = keeps_shards
        self._sends_once = sends_once
        self._is_upgrade = is_upgrade
        # Since when there has been a member of the old version; None: there is none.
        self._old_since_ms: int | None = 0
        self._was_new_alone = False
        self.set_aside: set[str] = set()  # workflows that their member could not restore
        self._new_forms: set[str] = set()  # workflows whose rows only new code reads
        self._holders = [HeldShard("", 0)] * world.shards
        self._sent: set[tuple[str, int]] = set()
        self.steps: dict[str, int] = {}  # by workflow, how many are stored
        self.sends = self.takes = self.gives = self.repeated = 0
        self.shared = 0  # how often all of an agent was in use by constant owners

    def committed(self, events: Sequence[ClusterEvent], ledger: LedgerProcess) -> None:
        """Check what a batch has stored, in its order."""
        for event in events:
            match event:
                case Moved():
                    self._moved(event, ledger)
                case Stepped(command, step):
                    held = self._holders[shard_of(command.workflow_id)]
                    is_current = held == HeldShard(command.member, command.shard_epoch)
                    require(is_current, "I2: a step of another than", held, command)
                    self.steps[command.workflow_id] = step
                    self._form_stored(command.workflow_id, form_of(command))
        self._note_versions()

    @property
    def new_forms(self) -> int:
        """How many workflows have a form that only new code reads."""
        return len(self._new_forms)

    def sent(self, call: AgentCall, epoch: int) -> None:
        """Check an attempt that goes to its agent now."""
        process, workflow_id, step, *_ = call
        held = self._holders[shard_of(workflow_id)]
        require(process.loop.is_alive, "a dead process sends", process)
        is_holder = held == HeldShard(process.member, epoch)
        require(is_holder, "I1: sent by", process.member, epoch, "but held by", held)
        is_repeated = (workflow_id, step) in self._sent
        self.repeated += is_repeated
        may_repeat = not self._sends_once or workflow_id in self.set_aside
        require(may_repeat or not is_repeated, "I4: sent twice", workflow_id, step)
        self._sent.add((workflow_id, step))
        self.sends += 1
        self._may_take(self._world.agent_of(workflow_id))

    def _note_versions(self) -> None:
        if all(int(row.version) >= NEW for row in self._world.database.rows.members.values()):
            self._old_since_ms, self._was_new_alone = None, True
        elif self._old_since_ms is None:
            self._old_since_ms = self._world.clock.now_ms()

    def _form_stored(self, workflow_id: str, form: int) -> None:
        """Check that no row takes the form that only new code reads while there is other code.

        One that has it keeps it: only new code drives it on.
        """
        if form < NEW or workflow_id in self._new_forms:
            return
        self._new_forms.add(workflow_id)
        since_ms = self._old_since_ms
        both_ms = 0 if since_ms is None else self._world.clock.now_ms() - since_ms
        require(self._was_new_alone, "I9: stored before all members were new")
        is_late = self._is_upgrade and both_ms > BOTH_MS
        require(not is_late, "I9: stored though an old member is there for", both_ms)

    def not_restored(self, workflow_id: str) -> None:
        """Note that a member of an older version cannot restore a workflow, and sets it aside.

        Calls of it that are open end with that: who restores it makes them again.
        """
        self.set_aside.add(workflow_id)

    def _may_take(self, agent: str) -> None:
        """Check that an agent has no more calls than it takes, unless the owners have changed.

        Calls that were sent while other members lived may still be open.
        """
        limit, calls = self._world.limit_of(agent), self._world.at_agents[agent]
        is_constant = len({call.owners for call in calls}) == 1
        require(
            len(calls) <= limit or not is_constant, "I8: more calls than", limit, "at", agent, calls
        )
        self.shared += is_constant and len(calls) == limit

    def poll(self) -> None:
        """Check that no member may send for a shard that another holds, whether it does or not."""
        for process in self._world.living.values():
            if process.may_send():
                for shard in range(self._world.shards):
                    if shard in process.held:
                        self._may_send(process, shard)

    def _may_send(self, process: MemberProcess, shard: int) -> None:
        held = self._holders[shard]
        is_held = held == HeldShard(process.member, process.held.epoch(shard))
        is_fenced = is_held or shard in process.held.frozen()
        require(is_fenced, "I1: may send for", shard, process, "but held by", held)

    def lost(self, process: MemberProcess, shard: int) -> None:
        """Check that a member may lose a shard."""
        require(not self._keeps_shards, "I4: lost without a crash", process, shard)

    def member_ends(self, process: MemberProcess, reason: str) -> None:
        """Check that a member that ends is known to have ended."""
        rows = self._world.database.rows
        row = rows.members.get(process.member)
        is_replaced = any(
            row is not None and other.address == row.address and other.joined_ms > row.joined_ms
            for other in rows.members.values()
        )
        is_over = is_replaced or process.member in rows.gone
        require(is_over, "I7: ends without need:", process, reason)
        # One that heard too late that it had joined never drove anything.
        is_kept = self._keeps_shards and process.is_renewed
        require(not is_kept, "I4: a member ends without a crash", process)

    def is_settled(self) -> bool:
        """Say whether every shard is held and driven by the member that should."""
        return not self.unsettled()

    def unsettled(self) -> list[str]:
        """Return by shard what is not as it should be."""
        world = self._world
        rows = world.database.rows
        ready = {
            row.address: member
            for member, row in rows.members.items()
            if row.state is MemberState.READY and member in world.living
        }
        found = [
            f"{process} is no member"
            for process in world.living.values()
            if process.is_joined and process.member not in rows.members
        ]
        targets = world.targets(ready)
        for shard, held in enumerate(rows.shards):
            process = world.living.get(held.member)
            wanted = ready.get(targets[shard]) if targets else None
            if process is None or process.held.epoch(shard) != held.epoch:
                found.append(f"{shard}: {held} is not held by {process}")
            elif wanted is not None and held.member != wanted:
                found.append(f"{shard}: {held}, wanted {wanted}")
            elif any(process.held.is_frozen(one) for one in world.workflows_of(shard)):
                found.append(f"{shard}: {held} is frozen")
        return found

    def _moved(self, event: Moved, ledger: LedgerProcess) -> None:
        held = self._holders[event.shard]
        is_next = event.epoch == held.epoch + 1 and event.before == held.member
        require(is_next, "a move that does not follow", held, event)
        self._holders[event.shard] = HeldShard(event.member, event.epoch)
        if not event.is_take:
            self.gives += 1
            return
        self.takes += 1
        before = self._world.living.get(event.before)
        if before is not None and event.shard in before.held and before.may_send():
            self._may_send(before, event.shard)
        if self._keeps_shards and event.before:
            # One that has not heard yet that it has joined does not renew, and drives nothing.
            has_ended = before is None or not before.is_joined
            require(has_ended, "I4-I6: taken from a member that lives", event, ledger)
