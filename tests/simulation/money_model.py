"""The accounts of the simulation's ledger: wallets, escrows, stakes, and what moves between them.

Says what the plans of `ledger` say, written again on purpose: a wrong share in `core/` must not be
right in its mirror. Reference: money.md (Settlement).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from core.errors import ErrorCode
from core.workflow.events import NodeChanged, NodePaid, StakeLocked, StakeUnlocked
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.stakes import DepositStake
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow

Row = dict[str, Any]
# What loses an agent a part of its stake, written out again as the fee is.
_GUILTY = (
    "AGENT_ERROR", "AGENT_TIMEOUT", "INVALID_REPLY", "RESULT_TOO_LARGE", "OUTPUT_SCHEMA",
    "VERIFICATION_REJECTED",
)  # fmt: skip


@dataclass(slots=True)
class Escrow:
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


class Refused(Exception):
    """A command is rejected, which is stored under its key."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(code, detail)
        self.outcome = Outcome(OutcomeStatus.REJECTED, {}, code, detail)


class MoneyModel:
    """Balances by address, and why they are so."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = defaultdict(int)
        self.escrows: dict[str, Escrow] = {}
        self.locks: dict[tuple[str, str], tuple[int, str, int]] = {}
        # By (workflow, node, attempt): of every lock that ended, whose it was, what, what was lost.
        self.ended_locks: dict[tuple[str, str, int], tuple[str, int, int]] = {}

    def withdraw_stake(self, did: str) -> None:
        """Give an agent back what no work has locked of its stake."""
        self._move(f"stake:{did}", f"wallet:{did}", self.balances[f"stake:{did}"])

    def _pay(self, workflow_id: str, escrow: Escrow, record: NodePaid) -> None:
        fee = record.gross_micro * escrow.fee_bps // 10_000
        escrow.paid[record.line] = (record.agent_did, record.gross_micro - fee, fee)
        source = f"escrow:{workflow_id}"
        self._move(source, f"wallet:{record.agent_did}", record.gross_micro - fee)
        self._move(source, "fee", fee)

    def _stake(self, command: DepositStake) -> dict[str, Any]:
        stake, wallet = f"stake:{command.agent_did}", f"wallet:{command.actor_did}"
        if command.amount_micro > self.balances[wallet]:
            raise Refused(ErrorCode.INSUFFICIENT_CREDITS, "too little in the wallet")
        self._move(wallet, stake, command.amount_micro)
        return {"balanceMicro": self.balances[wallet], "freeMicro": self.balances[stake]}

    def _move_stakes(
        self, command: PublishWorkflow | AdvanceWorkflow, nodes: dict[str, Row]
    ) -> list[str]:
        """Lock and free; the payer gets what agents lose by a failure, or by forgery.

        Returns the nodes whose lock was refused; what is not locked, no row says.
        """
        unstaked: list[str] = []
        for record in command.records:
            if not isinstance(record, StakeLocked | StakeUnlocked):
                continue
            place = (command.workflow_id, record.node)
            free, locked = f"stake:{record.agent_did}", f"stake_locked:{record.agent_did}"
            if isinstance(record, StakeUnlocked):
                if self.locks.get(place, (0, "", 0))[0] == record.attempt:
                    assert self.locks.pop(place)[1:] == (record.agent_did, record.micro), record
                    assert isinstance(command, AdvanceWorkflow), command
                    bps = command.slash_fraud_bps if record.is_forged else command.slash_bps
                    is_guilty = record.is_forged or record.failure_code in _GUILTY
                    lost = record.micro * bps // 10_000 if is_guilty else 0
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
                    nodes[record.node].pop("stake_micro", None)
        return unstaked

    def _move_bid(self, lock: tuple[str, int]) -> None:
        """Lock what a live bid locks, or free as much where it is negative."""
        did, micro = lock
        free, locked = f"stake:{did}", f"stake_locked:{did}"
        self._move(*((free, locked) if micro > 0 else (locked, free)), abs(micro))

    def _release(self, workflow_id: str) -> int:
        if (escrow := self.escrows.get(workflow_id)) is None:
            return 0
        escrow.is_released = True
        self._move(f"escrow:{workflow_id}", f"wallet:{escrow.payer_did}", escrow.rest)
        return escrow.rest

    def _move(self, debit: str, credit: str, micro: int) -> None:
        self.balances[debit] -= micro
        self.balances[credit] += micro
