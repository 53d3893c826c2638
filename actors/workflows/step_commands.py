"""Builds the ledger commands of a workflow's steps, their keys, and errors of refused requests.

Pure, apart from reads of the directory and the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from actors.directory.peer_directory import PeerDirectory
from actors.ports import Clock
from actors.shards.held_shards import HeldShards
from actors.transport.messages import CancelReply, Moved, NotYet, PublishRequest
from actors.workflows.publish_estimate import Estimate
from actors.workflows.running_workflow import RunningWorkflow
from core.errors import ErrorCode, QuarantineCode, ServiceError
from core.market.auction import Bid
from core.settings import Settings
from core.subnets.policies import NodeRate
from core.workflow.actions import Action, CloseAuction, SelectAgent, SelectBidder, SelectVerifier
from core.workflow.events import (
    AgentRevoked,
    AttemptSucceeded,
    BidsReceived,
    Event,
    NodeChanged,
    Record,
    RetryDue,
    VerificationFinished,
)
from core.workflow.terms import reserved_json
from ledger.authority import Authority
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.auctions import EndBidding, bids_key
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow

_HALTING: Final = (ErrorCode.FORBIDDEN, ErrorCode.CONFLICT, ErrorCode.OVERLOADED)


@dataclass(frozen=True, slots=True)
class OwnerCommands:
    """Builds the commands of one owner, with the epochs of its shards and its settings."""

    held: HeldShards
    settings: Settings

    def publish(
        self,
        request: PublishRequest,
        estimate: Estimate,
        records: Iterable[Record],
        now_ms: int,
        rates: tuple[NodeRate, ...] = (),
    ) -> PublishWorkflow:
        """Return the command that stores a workflow, its hold and its first attempts.

        Args:
            rates: for each rate policy of the payer, the number of nodes that the policy counts.
        """
        return PublishWorkflow(
            key=request.command_key,
            request_hash=request.request_hash,
            actor_did=request.actor_did,
            member=self.held.member,
            shard_epoch=self.held.epoch_of(request.workflow_id),
            workflow_id=request.workflow_id,
            task_id=request.task_id,
            payer_did=request.payer_did,
            intent=request.compiled.intent or "",
            manifest_json=request.manifest_json,
            created_ms=now_ms,
            deadline_ms=now_ms + request.compiled.max_runtime_ms,
            estimate_micro=estimate.total_micro,
            hold_micro=0 if estimate.exceeds_budget else estimate.hold_micro,
            reserved_json=reserved_json(estimate.reserved, estimate.terms),
            fee_bps=self.settings.fee_bps,
            has_hold=not estimate.exceeds_budget,
            records=tuple(records),
            authority=request.authority,
            traceparent=request.traceparent,
            webhook_url=request.webhook_url,
            run=request.run,
            rates=rates,
        )

    def advance(
        self,
        workflow_id: str,
        key: str,
        records: Iterable[Record],
        actor_did: str,
        *,
        is_fresh: bool = False,
        authority: Authority | None = None,
    ) -> AdvanceWorkflow:
        """Return the command that stores one step of a workflow.

        Args:
            key: the command's idempotency key.
            actor_did: the DID in whose name the step is taken, or the member's id.
            is_fresh: whether the step was decided from rows that were just read.
            authority: the single right that permits the step, None if none is needed.
        """
        return AdvanceWorkflow(
            key=key,
            member=self.held.member,
            shard_epoch=self.held.epoch_of(workflow_id),
            workflow_id=workflow_id,
            actor_did=actor_did,
            records=tuple(records),
            slash_bps=self.settings.slash_failure_bps,
            slash_fraud_bps=self.settings.slash_fraud_bps,
            is_fresh=is_fresh,
            authority=authority,
        )

    def end_bidding(self, workflow_id: str, action: CloseAuction) -> EndBidding:
        """Return the command that closes a round and reads its live bids."""
        return EndBidding(
            key=bids_key(workflow_id, action.node, action.round),
            member=self.held.member,
            shard_epoch=self.held.epoch_of(workflow_id),
            workflow_id=workflow_id,
            node=action.node,
            round=action.round,
        )


def resolve_selections(
    run: RunningWorkflow,
    directory: PeerDirectory,
    clock: Clock,
    records: list[Record],
    pending: list[Action],
) -> tuple[list[Record], list[Action]]:
    """Make the selections of a step; return all records, and the actions except the selections.

    The machine takes the result of each selection as an event, which may add records and actions.

    Args:
        records: the step's records so far.
        pending: the step's actions so far, including selections.
    """
    if not pending:
        return records, pending
    machine, payer_did = run.machine, run.payer_did
    records = list(records)
    actions: list[Action] = []
    waiting = deque(pending)
    while waiting:
        action = waiting.popleft()
        answer: Event
        if isinstance(action, SelectAgent):
            answer = directory.select(action, clock.now_ms(), payer_did=payer_did)
        elif isinstance(action, SelectBidder):
            answer = directory.select_bidder(action, clock.now_ms(), payer_did=payer_did)
        elif isinstance(action, SelectVerifier):
            answer = directory.select_verifier(action, clock.now_ms(), payer_did=payer_did)
        else:
            actions.append(action)
            continue
        decision = machine.step(answer)
        records += decision.records
        waiting.extend(decision.actions)
    return newest_rows(records), actions


def newest_rows(records: list[Record]) -> list[Record]:
    """Keep only the last record of each node's row, because a command writes each row once."""
    last = {record.node: record for record in records if isinstance(record, NodeChanged)}
    return [
        record
        for record in records
        if not isinstance(record, NodeChanged) or last[record.node] is record
    ]


def revoked_at_work(
    run: RunningWorkflow, directory: PeerDirectory, clock: Clock
) -> Iterator[AgentRevoked]:
    """Yield an event for each revoked agent that has work in a workflow."""
    # Sorted, because the sequence of a set differs between processes, and a simulation must depend
    # only on its seed.
    for did in sorted(run.machine.agents_at_work()):
        # The time is read for each agent, because the caller acts on each event, which takes time.
        at_ms = clock.now_ms()
        if directory.is_revoked(did, at_ms):
            yield AgentRevoked(did, at_ms)


def step_key(workflow_id: str, event: Event) -> str:
    """Return the command key of an event's step; the same event always has the same key."""
    kind = type(event).__name__
    node = getattr(event, "node", "")
    attempt = getattr(event, "attempt", 0)
    # One attempt may have several retries and several verifications, even two verifications within
    # one millisecond. `turn` makes their keys differ.
    turn = 0
    if isinstance(event, AttemptSucceeded) and event.is_settled:
        return settlement_key(workflow_id, node, attempt)
    if isinstance(event, RetryDue):
        turn = event.at_ms
    elif isinstance(event, BidsReceived):
        turn = event.round
    elif isinstance(event, AgentRevoked):
        node, turn = event.agent_did, event.at_ms
    elif isinstance(event, VerificationFinished):
        turn = event.at_ms if event.verify_attempt is None else event.verify_attempt
    return f"{kind}:{workflow_id}:{node}:{attempt}:{turn}"


def settlement_key(workflow_id: str, node: str, attempt: int) -> str:
    """Return the command key of the step by which a payer ends an accepted attempt."""
    return f"AttemptSettled:{workflow_id}:{node}:{attempt}"


def build_bids_heard(action: CloseAuction, outcome: Outcome, at_ms: int) -> BidsReceived:
    """Return the event of a round's live bids, from the ledger's outcome."""
    bids = tuple(
        Bid(
            bid["agentDid"],
            bid["amountMicro"],
            bid["etaMs"],
            bid["stakeOfferedMicro"],
            bid["receivedMs"],
            stake_locked_micro=bid.get("stakeLockedMicro", 0),
        )
        for bid in outcome.result["bids"]
    )
    return BidsReceived(action.node, action.round, bids, at_ms)


def build_cancel_reply(
    workflow_id: str, at_ms: int, records: Iterable[Record], outcome: Outcome
) -> CancelReply:
    """Return the reply to a cancellation whose records are committed."""
    return CancelReply(
        workflow_id=workflow_id,
        cancelled_ms=at_ms,
        nodes_affected=sum(isinstance(record, NodeChanged) for record in records),
        refunded_micro=int(outcome.result.get("releasedMicro", 0)),
    )


def is_halting(outcome: Outcome) -> bool:
    """Say whether a step was refused for a reason that may pass when the rows are read again.

    An agent of the step is revoked; or an earlier step of the workflow was refused in this way; or
    the ledger has an older version and cannot read the step (OVERLOADED). In the last case the
    workflow waits for a newer ledger.
    """
    is_refused = outcome.error in _HALTING
    return is_refused and "quarantined" not in outcome.result


def is_unanswered(outcome: Outcome) -> bool:
    """Say whether the ledger did not take a step and the caller must repeat its request.

    The workflow is halted or quarantined then, or another member holds its shard.
    """
    is_stale = outcome.status is OutcomeStatus.STALE
    return is_stale or is_halting(outcome) or quarantine_code(outcome) is not None


def quarantine_code(outcome: Outcome) -> tuple[str, bool] | None:
    """Return the quarantine code of a refused step, and whether the ledger has stored the code.

    Returns: None when the step was applied, or refused for a reason that the owner handles.
    """
    stored = outcome.result.get("quarantined")
    if stored is not None:
        return str(stored), True
    if outcome.error is None or outcome.error is ErrorCode.ESCROW_RELEASED or is_halting(outcome):
        return None
    return QuarantineCode.STEP_REFUSED, False


def rereading_error(workflow_id: str) -> NotYet:
    """Return the error of a request that arrives while the workflow's rows are read again."""
    message = f"workflow {workflow_id} is being reloaded: repeat the request"
    return NotYet(ErrorCode.OVERLOADED, message, retry_after_s=1)


def moved_error(workflow_id: str) -> Moved:
    """Return the error of a request for a workflow whose shard is not held here, or is frozen."""
    message = f"workflow {workflow_id} is moving to another process: repeat the request"
    return Moved(ErrorCode.OVERLOADED, message, retry_after_s=1)


def quarantined_error(workflow_id: str) -> ServiceError:
    """Return the error of a result for a quarantined workflow."""
    message = f"workflow {workflow_id} is quarantined: its results are accepted after it is resumed"
    return ServiceError(ErrorCode.OVERLOADED, message, retry_after_s=30)


def not_cancellable_error(workflow_id: str) -> ServiceError:
    """Return the error of a cancellation of a finished workflow."""
    message = f"workflow {workflow_id} has finished and cannot be cancelled"
    return ServiceError(ErrorCode.NOT_CANCELLABLE, message)
