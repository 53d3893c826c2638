"""Payments by concurrent callers through the ledger's group commit: throughput and CPU.

A payment is one command: agent and fee are paid from escrow (two entries), an audit record and the
key are stored. A whole node is a payment with its result, attempt, second audit record and
reputation. Uniform: each caller has its own workflow and agent. Hot: all callers pay one agent from
one escrow.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from itertools import count

from bench.load.one_member import join_as_new, take_all
from core.ids import uuid7
from core.shards.lease_messages import Renewal
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.accounts.account_commands import Deposit
from ledger.commands import Command
from ledger.errors import LedgerIntegrityError
from ledger.workflows.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.writer.group_commit import GroupCommit
from ledger.writer.store import Genesis

HOLD_MICRO = 10**9
PRICE_MICRO = 1_000
PAYER = "did:bench:payer"
MANIFEST = '{"nodes":{"n":{"capabilityId":"cap.bench.pay.v1"}}}'
RESULT = '{"text":"' + "a short answer of an agent, as they come, " * 4 + '"}'


@dataclass(frozen=True, slots=True)
class Paid:
    """A run's figures: payments, seconds, CPU seconds of this process, commits, milliseconds."""

    payments: int
    wall_s: float
    client_cpu_s: float
    batches: int
    p50_ms: float
    p99_ms: float


class Payments:
    """One ledger with workflows to pay from; created by `open`."""

    def __init__(self, ledger: GroupCommit, member: str, epoch: int) -> None:
        self._ledger = ledger
        self._member, self._epoch = member, epoch
        self._steps = count(1)

    @classmethod
    async def open(cls, url: str) -> Payments:
        """Start the writer, register a member, deposit for the payer."""
        ledger = GroupCommit(url, genesis=Genesis("bench", 500), on_fatal=_fatal)
        await ledger.start()
        money: list[Command] = [
            Deposit(
                key=f"bench:deposit:{uuid7(at_ms=now_ms(), entropy=os.urandom(10))}",
                request_hash=b"", actor_did=PAYER, owner_did=PAYER, amount_micro=9 * 10**14,
                description="bench",
            )
        ]  # fmt: skip
        joining = join_as_new()
        await ledger.submit([joining, *money])
        (lease,) = ledger.renew([Renewal(member=joining.member)])
        (taken,) = await ledger.submit([take_all(joining.member, lease.shards)])
        return cls(ledger, joining.member, int(taken.result["taken"]["0"]))

    async def close(self) -> None:
        """Stop the writer."""
        await self._ledger.stop()

    async def publish(self, count: int) -> list[str]:
        """Store this many workflows to pay from; return their ids."""
        commands = [self._workflow() for _ in range(count)]
        for outcome in await self._ledger.submit(commands):
            assert outcome.error is None, outcome
        return [command.workflow_id for command in commands]

    async def run(
        self, workflows: list[str], callers: int, seconds: float, *, is_whole: bool
    ) -> Paid:
        """Run this many callers, each paying again as soon as its last payment is committed.

        Args:
            workflows: the workflows to pay from, in turn.
            is_whole: whether a payment has all of a node's rows.
        """
        latencies: list[float] = []
        before = self._ledger.statistics().batches
        cpu, began = time.process_time(), time.perf_counter()
        end = began + seconds

        async def pay(number: int) -> None:
            workflow = workflows[number % len(workflows)]
            agent = f"did:bench:agent:{number % len(workflows)}"
            while (sent := time.perf_counter()) < end:
                await self._ledger.submit([self._payment(workflow, agent, is_whole)])
                latencies.append(time.perf_counter() - sent)

        await asyncio.gather(*(pay(number) for number in range(callers)))
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        latencies.sort()
        p50, p99 = (latencies[int(len(latencies) * part)] * 1_000 for part in (0.5, 0.99))
        batches = self._ledger.statistics().batches - before
        return Paid(len(latencies), wall_s, cpu_s, batches, p50, p99)

    def _payment(self, workflow_id: str, agent: str, is_whole: bool) -> AdvanceWorkflow:
        step, at = next(self._steps), now_ms()
        node = f"n{step}"
        paid = NodePaid(node, agent, PRICE_MICRO)
        return AdvanceWorkflow(
            key=f"bench:{workflow_id}:{step}",
            member=self._member,
            shard_epoch=self._epoch,
            workflow_id=workflow_id,
            actor_did=agent,
            records=(*_node(node, agent, at), paid) if is_whole else (paid,),
        )

    def _workflow(self) -> PublishWorkflow:
        at = now_ms()
        workflow_id = uuid7(at_ms=at, entropy=os.urandom(10))
        return PublishWorkflow(
            key=f"publish:{workflow_id}",
            request_hash=b"",
            actor_did=PAYER,
            member=self._member,
            shard_epoch=self._epoch,
            workflow_id=workflow_id,
            task_id=uuid7(at_ms=at, entropy=os.urandom(10)),
            payer_did=PAYER,
            intent="measure",
            manifest_json=MANIFEST,
            created_ms=at,
            deadline_ms=at + 300_000,
            estimate_micro=HOLD_MICRO,
            hold_micro=HOLD_MICRO,
            reserved_json="{}",
            fee_bps=500,
            has_hold=True,
            records=(WorkflowChanged(WorkflowStatus.RUNNING, at),),
        )


def _node(node: str, agent: str, at: int) -> tuple[AttemptFinished, NodeChanged]:
    return (
        AttemptFinished(
            node, 1, agent, "success", at, at + 5,
            input_hash="sha256:" + "1" * 64, output_hash="sha256:" + "2" * 64,
        ),
        NodeChanged(
            node, NodeStatus.SUCCESS, attempt=1, agent_did=agent, price_micro=PRICE_MICRO,
            dispatched_ms=at, deadline_ms=at + 60_000, result_json=RESULT, started_ms=at,
            completed_ms=at + 5, cost_micro=PRICE_MICRO, metrics={"latency_ms": 5},
        ),
    )  # fmt: skip


def now_ms() -> int:
    """Return Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def _fatal(error: LedgerIntegrityError) -> None:
    raise SystemExit(f"the ledger stopped: {error}")
