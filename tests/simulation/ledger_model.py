"""The ledger as a few dictionaries: what the simulation commits into instead of Postgres.

Says what `ledger/writer/store.py` says; `test_ledger_model.py` holds it to that. Accounts,
auctions, trust and shards are in the files beside. money.md (Commands and keys).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from core.errors import ErrorCode
from core.market.reputation import PROMISED_MS
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid, Record, WorkflowChanged
from core.workflow.transitions import WorkflowStatus, is_terminal
from ledger.commands import Command, Outcome, OutcomeStatus, request_hash_of
from ledger.features.accounts import Deposit
from ledger.features.auctions import EndBidding, PlaceBid
from ledger.features.quarantine import FORESEEN
from ledger.features.shards import ChangeMember, GiveShards, JoinCluster, TakeShards
from ledger.features.stakes import DepositStake
from ledger.features.trust import RevokeAgent, UnrevokeAgent
from ledger.features.workflow_commands import (
    AdvanceWorkflow,
    PublishWorkflow,
    QuarantineWorkflow,
    ResumeWorkflow,
)
from ledger.features.workflows import (
    attempt_row,
    change_workflow,
    node_row,
    workflow_row,
)
from ledger.reads.stored import StoredWorkflow
from ledger.schema import node as node_table
from tests.simulation.auction_model import AuctionModel, BadBid
from tests.simulation.money_model import Escrow, MoneyModel, Refused, Row
from tests.simulation.shard_model import BadMove, ShardModel
from tests.simulation.trust_model import TrustModel, Untraced

_FENCED = PublishWorkflow | AdvanceWorkflow | QuarantineWorkflow | ResumeWorkflow | EndBidding
_CODES = {ErrorCode.ALREADY_SETTLED: "ALREADY_SETTLED"}
_UNSET = dict.fromkeys(("quarantined_ms", "quarantine_code", "traceparent"))
_UNFINISHED = (WorkflowStatus.PENDING, WorkflowStatus.RUNNING)
# What a column holds that was stored without a value: zero for counts and amounts, else NULL.
_COUNTS = ("attempt", "_used", "_micro", "_round", "_version")
_NODE_COLUMNS = {c.name: 0 if c.name.endswith(_COUNTS) else None for c in node_table.c}
_NODE_COUNTS = {name: 0 for name, value in _NODE_COLUMNS.items() if value == 0}
_NODE_COLUMNS |= {"promised_ms": PROMISED_MS, "is_own": False}


class LedgerModel(MoneyModel):
    """Committed state. `on_applied` hears every applied command with its outcome; `cannot_apply`
    says at which commands this ledger fails."""

    def __init__(self, on_applied: Callable[[Command, Outcome], None] | None = None) -> None:
        super().__init__()
        self.shards = ShardModel()
        self.workflows: dict[str, Row] = {}
        self.nodes: dict[str, dict[str, Row]] = {}
        self.attempts: dict[str, list[Row]] = {}
        self.auctions = AuctionModel()
        self.trust = TrustModel()
        self.now_ms: Callable[[], int] = lambda: 0
        self.on_quarantined: Callable[[str, str], None] = lambda *_: None
        self.cannot_apply: Callable[[Command], bool] = lambda _: False
        self._known: dict[str, tuple[bytes | None, Outcome]] = {}
        self._on_applied = on_applied

    def commit(self, commands: Sequence[Command]) -> list[Outcome]:
        """Apply the commands in order; each sees those before it."""
        return [self._commit(command) for command in commands]

    def unfinished(self, shards: Collection[int]) -> list[StoredWorkflow]:
        """Return what there is to drive on in shards, as the readers of the real ledger would."""
        found = []
        for workflow_id, row in self.workflows.items():
            if int(workflow_id[16:18], 16) in shards and row["status"] in _UNFINISHED:
                rows = []
                for name, node in sorted(self.nodes[workflow_id].items()):
                    tries = [t for t in self.attempts[workflow_id] if t["node"] == name]
                    used = [t["agent_did"] for t in tries if t["kind"] == "primary"]
                    rows.append({**_NODE_COLUMNS, **node, "agents_used": used or None})
                found.append(StoredWorkflow({**_UNSET, **row}, rows))
        return found

    def stored(self, workflow_id: str) -> StoredWorkflow | None:
        """Return an unfinished workflow."""
        shard = int(workflow_id[16:18], 16)
        return next((one for one in self.unfinished([shard]) if one.id == workflow_id), None)

    def _commit(self, command: Command) -> Outcome:
        if self._is_stale(command):
            # Before the key: who has lost a shard may use its successor's key, and must not believe
            # that what was stored under it is its own.
            return Outcome(OutcomeStatus.STALE)
        if (known := self._known.get(command.key)) is not None:
            if request_hash_of(command) != known[0]:
                return Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.KEY_REUSED, "another request")
            return replace(known[1], status=OutcomeStatus.REPEATED)
        try:
            outcome = Outcome(OutcomeStatus.APPLIED, self._apply(command))
        except (BadBid, BadMove, Untraced) as untraced:
            return untraced.outcome
        except Refused as refusal:
            outcome = refusal.outcome
            if isinstance(command, AdvanceWorkflow) and outcome.error not in FORESEEN:
                code = _CODES.get(outcome.error, "STEP_REFUSED")
                return replace(outcome, result=self._quarantine(command.workflow_id, code))
            if isinstance(command, AdvanceWorkflow) and outcome.error is ErrorCode.FORBIDDEN:
                return outcome
        self._known[command.key] = (request_hash_of(command), outcome)
        if self._on_applied is not None and outcome.error is None:
            self._on_applied(command, outcome)
        return outcome

    def _is_stale(self, command: Command) -> bool:
        return isinstance(command, _FENCED) and not self.shards.is_current(
            command.workflow_id, command.member, command.shard_epoch
        )

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
                placed = self.auctions.place(command, self.now_ms())
                self._move_bid(self.auctions.lock(command, self.balances))
                return placed
            case EndBidding():
                return self.auctions.end_bidding(command, self.now_ms())
            case RevokeAgent() | UnrevokeAgent():
                self.trust.change(command, self.now_ms())
                return {}
            case QuarantineWorkflow(workflow_id=workflow_id, code=code):
                self._held(workflow_id)
                return self._quarantine(workflow_id, code)
            case ResumeWorkflow(workflow_id=workflow_id):
                self._held(workflow_id)
                self.trust.end_quarantine(workflow_id)
                self._show_quarantine(workflow_id, None)
                return {}
            case JoinCluster() | ChangeMember() | TakeShards() | GiveShards():
                return self.shards.apply(command, self.now_ms())
        raise AssertionError(f"the simulation has no {command}")

    def _publish(self, command: PublishWorkflow) -> dict[str, Any]:
        if self.cannot_apply(command):
            raise Refused(ErrorCode.INTERNAL_ERROR, "a defect")
        wallet, hold = f"wallet:{command.payer_did}", command.hold_micro
        if hold > self.balances[wallet]:
            raise Refused(ErrorCode.INSUFFICIENT_CREDITS, "too little in the wallet")
        row = self.workflows[command.workflow_id] = workflow_row(command)
        self.nodes[command.workflow_id] = {}
        self.attempts[command.workflow_id] = []
        if command.has_hold:
            self._move(wallet, f"escrow:{command.workflow_id}", hold)
            self.escrows[command.workflow_id] = Escrow(command.payer_did, hold, command.fee_bps)
        self._store(command.workflow_id, command.records)
        ids = {"workflowId": command.workflow_id, "taskId": command.task_id}
        status = str(row["status"]) if is_terminal(row["status"]) else "pending"
        return {**ids, "status": status, **self._named(command)}

    def _held(self, workflow_id: str) -> Escrow:
        escrow = self.escrows.get(workflow_id)
        if escrow is None or escrow.is_released:
            raise Refused(ErrorCode.ESCROW_RELEASED, "the workflow has ended")
        return escrow

    def _quarantine(self, workflow_id: str, code: str) -> dict[str, Any]:
        is_new = workflow_id not in self.trust.quarantined
        code = self.trust.quarantine(workflow_id, str(code))
        self._show_quarantine(workflow_id, code)
        if is_new:
            self.on_quarantined(workflow_id, code)
        return {"quarantined": code}

    def _show_quarantine(self, workflow_id: str, code: str | None) -> None:
        row = self.workflows[workflow_id]
        if code != row.get("quarantine_code"):
            row["quarantine_code"] = code
            row["quarantined_ms"] = None if code is None else self.now_ms()

    def _advance(self, command: AdvanceWorkflow) -> dict[str, Any]:
        escrow = self._held(command.workflow_id)
        if self.trust.refuses(command, self.now_ms()):
            raise Refused(ErrorCode.FORBIDDEN, "of a revoked agent")
        paid = [record for record in command.records if isinstance(record, NodePaid)]
        nodes = self.nodes[command.workflow_id]
        changed = [nodes.get(r.node, {}) for r in command.records if isinstance(r, NodeChanged)]
        is_settled = any(node.get("status") == "success" for node in changed)
        if is_settled or any(record.line in escrow.paid for record in paid):
            raise Refused(ErrorCode.ALREADY_SETTLED, "a line is already paid")
        if sum(record.gross_micro for record in paid) > escrow.rest:
            raise Refused(ErrorCode.INTERNAL_ERROR, "more than is left in the escrow")
        if self.cannot_apply(command):
            raise Refused(ErrorCode.INTERNAL_ERROR, "a defect")
        self.trust.resume(command)
        for record in paid:
            self._pay(command.workflow_id, escrow, record)
        released = self._store(command.workflow_id, command.records)
        result: dict[str, Any] = {} if released is None else {"releasedMicro": released}
        return {**result, **self._named(command)}

    def _named(self, command: PublishWorkflow | AdvanceWorkflow) -> dict[str, Any]:
        """Move stakes; return the nodes whose attempts must not be sent, and why."""
        unstaked = self._move_stakes(command, self.nodes[command.workflow_id])
        revoked = self.trust.given(command.records, self.now_ms())
        return {k: v for k, v in {"unstaked": unstaked, "revoked": revoked}.items() if v}

    def _store(self, workflow_id: str, records: Sequence[Record]) -> int | None:
        """Store rows; at the end of the workflow return what the payer gets back."""
        released: int | None = None
        for freed in self.auctions.store(workflow_id, records):
            self._move_bid(freed)
        for record in records:
            if isinstance(record, NodeChanged):
                row = node_row(workflow_id, record)
                self.nodes[workflow_id][record.node] = _NODE_COUNTS | row
            elif isinstance(record, AttemptFinished):
                self.attempts[workflow_id].append(attempt_row(workflow_id, record))
            elif isinstance(record, WorkflowChanged):
                change_workflow(self.workflows[workflow_id], record)
                if is_terminal(record.status):
                    released = self._release(workflow_id)
        return released
