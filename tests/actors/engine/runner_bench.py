"""A runner within reach: its ledger answers when told to, its orders are kept, time is virtual.

Real machine, directory and recovery; the ledger is the simulation's model behind a gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from actors.directory.peer_directory import PeerDirectory
from actors.engine.outbox import Finished
from actors.engine.runner import Runner
from actors.ports import DispatchOrder, LedgerPort
from actors.process.at_work import AtWork
from actors.shards.held_shards import HeldShards
from actors.shards.shard_ledger import ShardLedger
from actors.transport.messages import CancelRequest, PublishRequest
from actors.workflows.publish_admission import DISPATCHES_MAX
from core.settings import Settings
from core.trust.deployment_keys import DeploymentKeys
from core.workflow.events import AttemptSucceeded, Event
from ledger.commands import Command, Outcome
from ledger.features.accounts import Deposit
from ledger.features.shards import JoinCluster, TakeShards
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.shapes import CAPABILITIES, Shape, agent_rows, compiled
from tests.simulation.skewed_clock import VirtualClock

PAYER = "did:test:payer"
SHARD = 0  # of all workflows whose id is `wid`'s
CHAIN = compiled(
    {
        "nodes": {
            "a": {"capabilityId": CAPABILITIES[1]},
            "b": {"capabilityId": CAPABILITIES[1], "dependsOn": ["a"]},
        }
    }
)
VERIFIED = compiled(
    {"nodes": {"a": {"capabilityId": CAPABILITIES[1], "requiresVerification": True}}}
)


def wid(name: str) -> str:
    """Return the id of a workflow that tests know by a name of at most six letters."""
    return f"00000000-0000-7000-8000-{int.from_bytes(name.encode()):012x}"


FIRST = wid("w1")


class Gate:
    """A ledger that answers when it is told to."""

    def __init__(self, model: LedgerModel) -> None:
        self.model = model
        self.waiting: list[tuple[Command, Callable[[Outcome], None]]] = []
        self.is_full = False

    def has_room(self, payer: str) -> bool:
        """Implement `LedgerPort`."""
        return not self.is_full

    def submit(self, command: Command, done: Callable[[Outcome], None], payer: str = "") -> None:
        """Implement `LedgerPort`."""
        self.waiting.append((command, done))

    def commit(self, *, times: int = 1) -> None:
        """Commit everything that waits, and what follows from it; each command `times` over."""
        while self.waiting:
            command, done = self.waiting.pop(0)
            outcome = [self.model.commit([command])[0] for _ in range(times)][-1]
            done(outcome)


class Outbox:
    """A dispatcher that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[DispatchOrder] = []
        self.aborted: list[tuple[DispatchOrder, str]] = []
        self.held: list[DispatchOrder] = []
        self.over: list[DispatchOrder] = []
        self.cancelled: list[DispatchOrder] = []
        self.given_up: list[DispatchOrder] = []
        self.waiting = 0

    def waiting_of(self, payer: str) -> int:
        """Implement `DispatchPort`: the only payer's."""
        return self.waiting if payer == PAYER else 0

    def send(self, order: DispatchOrder, receive: Callable[[str, Event], None]) -> None:
        """Implement `DispatchPort`."""
        self.sent.append(order)

    def hold(self, order: DispatchOrder) -> None:
        """Implement `DispatchPort`."""
        self.held.append(order)

    def release(self, order: DispatchOrder) -> None:
        """Implement `DispatchPort`."""
        self.over.append(order)

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Implement `DispatchPort`."""
        self.aborted.append((order, reason))

    def cancel(self, order: DispatchOrder) -> None:
        """Implement `DispatchPort`."""
        self.cancelled.append(order)

    def give_up(self, order: DispatchOrder) -> None:
        """Implement `DispatchPort`."""
        self.given_up.append(order)


class Bench:
    """One runner and everything around it, in reach."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        deposit: int = 10**9,
        stake_bps: int = 0,
        dispatches_max: int = DISPATCHES_MAX,
    ) -> None:
        self._dispatches_max = dispatches_max
        self.settings = settings or Settings()
        self.clock = VirtualClock()
        self.model = LedgerModel()
        self.model.commit(
            [Deposit(key="d", request_hash=b"", actor_did=PAYER, owner_did=PAYER,
                     amount_micro=deposit, description="")]
        )  # fmt: skip
        self.directory = PeerDirectory(
            service="callboard",
            deployment_keys=DeploymentKeys(),
            default_secret=None,
            max_concurrency=32,
            stake_bps=stake_bps,
        )
        self.directory.put(agent_rows())
        self.gate = Gate(self.model)
        self.outbox = Outbox()
        self.finished: list[str] = []
        self.lost: list[tuple[int, int]] = []
        self.starts = 0
        self.unsure: list[str] = []
        self.replies: list[Any] = []
        self.runner = self.new_runner()

    def new_runner(
        self,
        on_finished: Finished | None = None,
        at_work: AtWork | None = None,
        ledger: LedgerPort | None = None,
    ) -> Runner:
        """Start an owner's process anew: a new epoch and nothing in memory."""
        self.starts += 1
        held = self.held = HeldShards(f"one~{self.starts}")
        join = JoinCluster(
            key=f"join:{self.starts}", member=held.member, machine="m", address="one", version="1"
        )
        take = TakeShards(
            key=f"take:{self.starts}", member=held.member, shards=((SHARD, self.starts - 1),)
        )
        self.model.shards.is_live = lambda member: member == held.member
        for command in (join, take):
            outcome = self.model.commit([command])[0]
            assert outcome.error is None, outcome
        held.add(SHARD, int(outcome.result["taken"][str(SHARD)]))

        def stale(shard: int, epoch: int) -> None:
            self.lost.append((shard, epoch))
            if held.epoch(shard) == epoch:
                held.drop(shard)
                for _ in runner.shards.drop([shard]):
                    pass

        self.ledger = ShardLedger(ledger or self.gate, stale)
        runner = Runner(
            held,
            self.settings,
            ledger=self.ledger,
            directory=self.directory,
            dispatcher=self.outbox,
            clock=self.clock,
            on_finished=on_finished or (lambda workflow_id, *_: self.finished.append(workflow_id)),
            on_rows_needed=self.unsure.append,
            at_work=at_work or AtWork(),
            dispatches_max=self._dispatches_max,
        )
        return runner

    def publish(self, shape: Shape = CHAIN, *, workflow_id: str = FIRST, **changes: Any) -> None:
        """Ask the runner to publish."""
        request = PublishRequest(
            **{
                "command_key": f"publish:{workflow_id}",
                "request_hash": b"h",
                "actor_did": PAYER,
                "workflow_id": workflow_id,
                "task_id": f"t-{workflow_id}",
                "payer_did": PAYER,
                "manifest_json": shape.manifest_json,
                "compiled": shape.compiled,
                **changes,
            }
        )
        self.runner.publish(request, self.replies.append)

    def publish_and_commit(self, shape: Shape = CHAIN, **changes: Any) -> None:
        """Ask the runner to publish, and commit what follows."""
        self.publish(shape, **changes)
        self.gate.commit()

    def cancel(self) -> None:
        """Ask the runner to cancel."""
        request = CancelRequest(
            workflow_id=wid("w1"), reason="user_request", details="", actor_did=PAYER
        )
        self.runner.cancel(request, self.replies.append)

    def cancel_and_commit(self) -> None:
        """Ask the runner to cancel, and commit what follows."""
        self.cancel()
        self.gate.commit()

    def deliver(self, order: DispatchOrder, result: object = None) -> None:
        """Let the agent of an order deliver."""
        result = result or {"from": order.node}
        now_ms = self.clock.now_ms()
        self.runner.receive(
            order.workflow_id,
            AttemptSucceeded(order.node, order.attempt, orjson.dumps(result).decode(),
                             "sha256:i", "sha256:o", now_ms, now_ms),
        )  # fmt: skip

    def deliver_and_commit(self, order: DispatchOrder, result: object = None) -> None:
        """Let the agent of an order deliver, and commit what follows."""
        self.deliver(order, result)
        self.gate.commit()

    def run_until(self, time_ms: int) -> None:
        """Let time pass, and commit what follows."""
        self.clock.run_until(time_ms)
        self.gate.commit()

    def adopt_all(self) -> None:
        """Restore what the ledger has, as an owner's start does."""
        with self.runner.reads.open() as changed_ids:
            for stored in self.model.unfinished([SHARD]):
                self.runner.restore_stored(stored, changed_ids)

    def restart(self) -> None:
        """Replace the owner's process, and restore what the ledger has."""
        self.runner = self.new_runner()
        self.adopt_all()

    def restart_and_commit(self) -> None:
        """Replace the owner's process, restore what the ledger has, and commit what follows."""
        self.restart()
        self.gate.commit()

    def status(self) -> str:
        """Return the stored status of the workflow."""
        return str(self.model.workflows[wid("w1")]["status"])
