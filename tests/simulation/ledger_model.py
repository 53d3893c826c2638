"""The ledger as a few dictionaries: what the simulation commits into instead of Postgres.

Says what `ledger/store.py` says; `test_ledger_model.py` holds it to that. The fee is written out
again on purpose: a wrong one in `core/` must not be right in its mirror. money.md section 4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.errors import ErrorCode
from core.workflow.events import (
    AttemptFinished,
    NodeChanged,
    NodePaid,
    Record,
    StakeFreed,
    StakeLocked,
    WorkflowChanged,
)  # fmt: skip
from core.workflow.transitions import WorkflowStatus, is_terminal
from ledger.commands import (
    AdvanceWorkflow,
    ClaimWorkflows,
    Command,
    Deposit,
    Outcome,
    OutcomeStatus,
    PublishWorkflow,
    RegisterOwner,
)
from ledger.market_commands import DepositStake, EndBidding, PlaceBid
from ledger.planning.plan import request_hash_of
from ledger.planning.rows import attempt_row, change_workflow, node_row, workflow_row
from ledger.queries.stored import StoredWorkflow
from ledger.schema import node as node_table
from ledger.trust_commands import RevokeAgent, UnrevokeAgent
from tests.simulation.auction_model import AuctionModel, BadBid
from tests.simulation.trust_model import TrustModel, Untraced

Row = dict[str, Any]
# What loses an agent a part of its stake, written out again as the fee is.
_GUILTY = (
    "AGENT_ERROR", "AGENT_TIMEOUT", "INVALID_REPLY", "RESULT_TOO_LARGE", "OUTPUT_SCHEMA",
    "VERIFICATION_REJECTED",
)  # fmt: skip
_UNFINISHED = (WorkflowStatus.PENDING, WorkflowStatus.RUNNING)
# What a column holds that was stored without a value: zero for counts and amounts, else NULL.
_COUNTS = ("attempt", "_used", "_micro", "_round")
_NODE_COLUMNS = {c.name: 0 if c.name.endswith(_COUNTS) else None for c in node_table.c}


@dataclass(slots=True)
class ModelEscrow:
    """A hold and where it went; `paid` has (agent, its part, fee) by line."""

    payer_did: str
    amount: int
    fee_bps: int
    paid: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    is_released: bool = False

    @property
    def rest(self) -> int:
        """What has not been paid out."""
        return self.amount - sum(micro + fee for _, micro, fee in self.paid.values())


class _Refusal(Exception):
    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(code, detail)
        self.outcome = Outcome(OutcomeStatus.REJECTED, {}, code, detail)


class LedgerModel:
    """Committed state. `on_applied` hears every applied command with its outcome."""

    def __init__(self, on_applied: Callable[[Command, Outcome], None] | None = None) -> None:
        self.balances: dict[str, int] = defaultdict(int)
        self.owners: dict[str, int] = {}
        self.workflows: dict[str, Row] = {}
        self.nodes: dict[str, dict[str, Row]] = {}
        self.attempts: dict[str, list[Row]] = {}
        self.escrows: dict[str, ModelEscrow] = {}
        self.locks: dict[tuple[str, str], tuple[int, str, int]] = {}
        # By (workflow, node, attempt): of every lock that ended, whose it was, what, what was lost.
        self.ended_locks: dict[tuple[str, str, int], tuple[str, int, int]] = {}
        self.auctions = AuctionModel()
        self.trust = TrustModel()
        self.now_ms: Callable[[], int] = lambda: 0
        self._known: dict[str, tuple[bytes | None, Outcome]] = {}
        self._on_applied = on_applied

    def commit(self, commands: Sequence[Command]) -> list[Outcome]:
        """Apply the commands in order; each sees those before it."""
        return [self._commit(command) for command in commands]

    def unfinished(self, owner: str) -> list[StoredWorkflow]:
        """Return what an owner has to drive on, as the readers of the real ledger would."""
        found = []
        for workflow_id, row in self.workflows.items():
            if row["owner"] == owner and row["status"] in _UNFINISHED:
                rows = []
                for name, node in sorted(self.nodes[workflow_id].items()):
                    tries = [t for t in self.attempts[workflow_id] if t["node"] == name]
                    used = [t["agent_did"] for t in tries if t["kind"] == "primary"]
                    rows.append({**_NODE_COLUMNS, **node, "agents_used": used or None})
                found.append(StoredWorkflow(dict(row), rows))
        return found

    def _commit(self, command: Command) -> Outcome:
        if self._is_stale(command):
            # Before the key: a fenced owner may use its successor's key, and must not believe that
            # what was stored under it is its own.
            return Outcome(OutcomeStatus.STALE)
        is_start = isinstance(command, RegisterOwner)
        if not is_start and (known := self._known.get(command.key)) is not None:
            if request_hash_of(command) != known[0]:
                return Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.KEY_REUSED, "another request")
            return replace(known[1], status=OutcomeStatus.REPEATED)
        try:
            outcome = Outcome(OutcomeStatus.APPLIED, self._apply(command))
        except (BadBid, Untraced) as untraced:
            return untraced.outcome
        except _Refusal as refusal:
            outcome = refusal.outcome
        if not is_start:
            self._known[command.key] = (request_hash_of(command), outcome)
        if self._on_applied is not None and outcome.error is None:
            self._on_applied(command, outcome)
        return outcome

    def _is_stale(self, command: Command) -> bool:
        if isinstance(command, PublishWorkflow | AdvanceWorkflow):
            return self.owners.get(command.owner) != command.owner_epoch
        is_claim = isinstance(command, ClaimWorkflows)
        return is_claim and self.owners.get(command.to_owner) != command.to_epoch

    def _apply(self, command: Command) -> dict[str, Any]:
        match command:
            case AdvanceWorkflow():
                return self._advance(command)
            case PublishWorkflow():
                return self._publish(command)
            case Deposit():
                wallet = f"wallet:{command.owner_did}"
                self._move("world", wallet, command.amount_micro)
                return {"balanceMicro": self.balances[wallet]}
            case DepositStake():
                return self._stake(command)
            case PlaceBid():
                if self.trust.is_revoked(command.agent_did, self.now_ms()):
                    raise BadBid(ErrorCode.FORBIDDEN, "revoked")
                return self.auctions.place(command, self.now_ms())
            case EndBidding():
                return self.auctions.end_bidding(command, self.now_ms())
            case RevokeAgent() | UnrevokeAgent():
                refused = self.trust.change(command, self.now_ms())
                if refused is not None:
                    raise _Refusal(refused, "not to be done")
                return {}
            case RegisterOwner(owner=owner):
                self.owners[owner] = self.owners.get(owner, 0) + 1
                return {"epoch": self.owners[owner]}
            case ClaimWorkflows():
                return self._claim(command)
        raise AssertionError(f"the simulation has no {command}")

    def _stake(self, command: DepositStake) -> dict[str, Any]:
        stake, wallet = f"stake:{command.agent_did}", f"wallet:{command.actor_did}"
        if command.amount_micro > self.balances[wallet]:
            raise _Refusal(ErrorCode.INSUFFICIENT_CREDITS, "too little in the wallet")
        self._move(wallet, stake, command.amount_micro)
        return {"balanceMicro": self.balances[wallet], "freeMicro": self.balances[stake]}

    def _claim(self, command: ClaimWorkflows) -> dict[str, Any]:
        is_current = self.owners.get(command.from_owner) == command.from_epoch
        if not is_current or command.from_owner == command.to_owner:
            raise _Refusal(ErrorCode.CONFLICT, "not silent any more")
        self.owners[command.from_owner] += 1
        claimed = self.unfinished(command.from_owner)
        for stored in claimed:
            self.workflows[stored.workflow_id]["owner"] = command.to_owner
        return {"claimed": len(claimed)}

    def _publish(self, command: PublishWorkflow) -> dict[str, Any]:
        wallet, hold = f"wallet:{command.payer_did}", command.hold_micro if command.has_hold else 0
        if hold > self.balances[wallet]:
            raise _Refusal(ErrorCode.INSUFFICIENT_CREDITS, "too little in the wallet")
        row = self.workflows[command.workflow_id] = workflow_row(command)
        self.nodes[command.workflow_id] = {}
        self.attempts[command.workflow_id] = []
        if command.has_hold:
            self._move(wallet, f"escrow:{command.workflow_id}", hold)
            escrow = ModelEscrow(command.payer_did, hold, command.fee_bps)
            self.escrows[command.workflow_id] = escrow
        self._store(command.workflow_id, command.records)
        ids = {"workflowId": command.workflow_id, "taskId": command.task_id}
        status = str(row["status"]) if is_terminal(row["status"]) else "pending"
        return {**ids, "status": status, **self._move_stakes(command), **self._untrusted(command)}

    def _advance(self, command: AdvanceWorkflow) -> dict[str, Any]:
        escrow = self.escrows.get(command.workflow_id)
        if escrow is None or escrow.is_released:
            raise _Refusal(ErrorCode.ESCROW_RELEASED, "the workflow has ended")
        if self.trust.refuses(command, self.now_ms()):
            raise _Refusal(ErrorCode.FORBIDDEN, "of a revoked agent")
        paid = [record for record in command.records if isinstance(record, NodePaid)]
        nodes = self.nodes[command.workflow_id]
        changed = [nodes.get(r.node, {}) for r in command.records if isinstance(r, NodeChanged)]
        is_settled = any(node.get("status") == "success" for node in changed)
        if is_settled or any(record.line in escrow.paid for record in paid):
            raise _Refusal(ErrorCode.ALREADY_SETTLED, "a line is already paid")
        if sum(record.gross_micro for record in paid) > escrow.rest:
            raise _Refusal(ErrorCode.INTERNAL_ERROR, "more than is left in the escrow")
        self.trust.resume(command)
        for record in paid:
            fee = record.gross_micro * escrow.fee_bps // 10_000
            escrow.paid[record.line] = (record.agent_did, record.gross_micro - fee, fee)
            source = f"escrow:{command.workflow_id}"
            self._move(source, f"wallet:{record.agent_did}", record.gross_micro - fee)
            self._move(source, "fee", fee)
        released = self._store(command.workflow_id, command.records)
        result: dict[str, Any] = {} if released is None else {"releasedMicro": released}
        return {**result, **self._move_stakes(command), **self._untrusted(command)}

    def _untrusted(self, command: PublishWorkflow | AdvanceWorkflow) -> dict[str, Any]:
        nodes = self.trust.given(command.records, self.now_ms())
        return {"revoked": nodes} if nodes else {}

    def _move_stakes(self, command: PublishWorkflow | AdvanceWorkflow) -> dict[str, Any]:
        """Lock and free; the payer gets what agents lose by failing a node, or by forgery."""
        unstaked: list[str] = []
        for record in command.records:
            if not isinstance(record, StakeLocked | StakeFreed):
                continue
            place = (command.workflow_id, record.node)
            free, locked = f"stake:{record.agent_did}", f"stake_locked:{record.agent_did}"
            if isinstance(record, StakeFreed):
                if self.locks.get(place, (0, "", 0))[0] == record.attempt:
                    assert self.locks.pop(place)[1:] == (record.agent_did, record.micro), record
                    lost = self._slashed(command, record)
                    ended = (record.agent_did, record.micro, lost)
                    self.ended_locks[*place, record.attempt] = ended
                    self._move(locked, f"wallet:{self.escrows[place[0]].payer_did}", lost)
                    self._move(locked, free, record.micro - lost)
            elif self.balances[free] < record.micro:
                unstaked.append(record.node)
            else:
                self.locks[place] = (record.attempt, record.agent_did, record.micro)
                self._move(free, locked, record.micro)
        for record in command.records:
            if isinstance(record, NodeChanged):
                lock = self.locks.get((command.workflow_id, record.node))
                if lock is None or lock[0] != record.attempt:
                    self.nodes[command.workflow_id][record.node].pop("stake_micro", None)
        return {"unstaked": unstaked} if unstaked else {}

    def _slashed(self, command: PublishWorkflow | AdvanceWorkflow, freed: StakeFreed) -> int:
        assert isinstance(command, AdvanceWorkflow), command
        if freed.is_forged:
            return freed.micro * command.slash_fraud_bps // 10_000
        for record in command.records:
            if isinstance(record, NodeChanged) and record.node == freed.node:
                error = record.error or {}
                is_last = str(record.status) in ("failed", "timeout")
                if is_last and record.attempt == freed.attempt and "isSpared" not in error:
                    bps = command.slash_bps
                    return freed.micro * bps // 10_000 if error["code"] in _GUILTY else 0
        return 0

    def _store(self, workflow_id: str, records: Sequence[Record]) -> int | None:
        """Store rows; at the end of the workflow return what the payer gets back."""
        released: int | None = None
        self.auctions.store(workflow_id, records)
        for record in records:
            if isinstance(record, NodeChanged):
                self.nodes[workflow_id][record.node] = node_row(workflow_id, record)
            elif isinstance(record, AttemptFinished):
                self.attempts[workflow_id].append(attempt_row(workflow_id, record))
            elif isinstance(record, WorkflowChanged):
                change_workflow(self.workflows[workflow_id], record)
                if is_terminal(record.status):
                    released = self._release(workflow_id)
        return released

    def _release(self, workflow_id: str) -> int:
        if (escrow := self.escrows.get(workflow_id)) is None:
            return 0
        escrow.is_released = True
        self._move(f"escrow:{workflow_id}", f"wallet:{escrow.payer_did}", escrow.rest)
        return escrow.rest

    def _move(self, debit: str, credit: str, micro: int) -> None:
        self.balances[debit] -= micro
        self.balances[credit] += micro
