"""The ledger's money as plain integers, to be compared with the real one after every step.

Written without looking at how the ledger plans: dicts, sums and the rules of money.md section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.errors import ErrorCode
from core.market.refund import RefundSources, RefundSplit, split_refund
from core.market.settlement import PaymentSplit
from core.money import MICRO_PER_CENT


@dataclass
class Line:
    """One payment: who got it, its two parts, and what of each has come back."""

    workflow_id: str
    node: str
    payer: str
    agent: str
    paid: PaymentSplit
    back: PaymentSplit = field(default_factory=lambda: PaymentSplit(0, 0))

    @property
    def left(self) -> int:
        """What is still paid of it."""
        parts = (self.paid.agent_micro, self.paid.fee_micro)
        return sum(parts) - self.back.agent_micro - self.back.fee_micro


@dataclass
class Contract:
    """A workflow's money: what was held, what is left or came back, whether it runs."""

    payer: str
    hold: int
    fee_bps: int
    rest: int
    is_running: bool = True


@dataclass
class Lock:
    """What is locked of an agent's stake for one node."""

    workflow_id: str
    payer: str
    agent: str
    micro: int


@dataclass
class Limits:
    """A payer's quota."""

    per_day: int | None = None
    at_once: int | None = None
    cents: int | None = None


class MoneyModel:
    """Who has what; every method is what one accepted command does to it."""

    def __init__(self, dids: list[str], *, fee: int) -> None:
        self.wallets = dict.fromkeys(dids, 0)
        self.stakes: dict[str, int] = {}
        self.locked: dict[str, int] = {}
        self.locks: dict[str, Lock] = {}
        self.contracts: dict[str, Contract] = {}
        self.lines: list[Line] = []
        self.limits: dict[str, Limits] = {}
        self.fee = fee

    def balances(self) -> dict[str, int]:
        """Return the balance of every account this run has touched, by address."""
        return {
            "fee": self.fee,
            **{f"wallet:{did}": micro for did, micro in self.wallets.items()},
            **{f"stake:{did}": micro for did, micro in self.stakes.items()},
            **{f"stake_locked:{did}": micro for did, micro in self.locked.items()},
            **{
                f"escrow:{name}": item.rest if item.is_running else 0
                for name, item in self.contracts.items()
            },
        }

    def publish_error(self, payer: str, hold: int) -> ErrorCode | None:
        """Say why a publish must be refused, counted anew from all contracts of the payer."""
        if hold > self.wallets[payer]:
            return ErrorCode.INSUFFICIENT_CREDITS
        published, running, spend = self.usage(payer)
        limits = self.limits.get(payer, Limits())
        room = [
            limits.per_day is None or published < limits.per_day,
            limits.at_once is None or running < limits.at_once,
            limits.cents is None or spend + hold <= limits.cents * MICRO_PER_CENT,
        ]
        return None if all(room) else ErrorCode.QUOTA_EXCEEDED

    def usage(self, payer: str) -> tuple[int, int, int]:
        """Return how many workflows a payer has published, how many run, what they cost."""
        own = [item for item in self.contracts.values() if item.payer == payer]
        spend = sum(item.hold if item.is_running else item.hold - item.rest for item in own)
        return len(own), sum(item.is_running for item in own), spend

    def publish(self, workflow_id: str, payer: str, hold: int, fee_bps: int) -> None:
        self.wallets[payer] -= hold
        self.contracts[workflow_id] = Contract(payer, hold, fee_bps, hold)

    def pay(self, workflow_id: str, node: str, agent: str, gross: int) -> None:
        contract = self.contracts[workflow_id]
        fee = gross * contract.fee_bps // 10_000
        contract.rest -= gross
        self.wallets[agent] += gross - fee
        self.fee += fee
        paid = PaymentSplit(gross - fee, fee)
        self.lines.append(Line(workflow_id, node, contract.payer, agent, paid))

    def end(self, workflow_id: str) -> int:
        """End a workflow; return what comes back."""
        contract = self.contracts[workflow_id]
        rest = contract.rest
        self.wallets[contract.payer] += rest
        contract.is_running = False
        return rest

    def refund(self, line: Line, micro: int) -> RefundSplit:
        """Give a part of a payment back, as far as its receivers have it."""
        split = split_refund(
            micro,
            paid=line.paid,
            refunded=line.back,
            sources=RefundSources(
                self.wallets[line.agent],
                self.fee,
                self.locked.get(line.agent, 0),
                self.stakes.get(line.agent, 0),
            ),
        )
        line.back = PaymentSplit(
            line.back.agent_micro + split.agent_micro, line.back.fee_micro + split.fee_micro
        )
        self.wallets[line.agent] -= split.wallet_micro
        self.fee -= split.fee_micro
        if split.stake_locked_micro:
            self.locked[line.agent] -= split.stake_locked_micro
        if split.stake_free_micro:
            self.stakes[line.agent] -= split.stake_free_micro
        self.wallets[line.payer] += split.refunded_micro
        return split

    def lock(self, node: str, lock: Lock) -> None:
        self.stakes[lock.agent] -= lock.micro
        self.locked[lock.agent] = self.locked.get(lock.agent, 0) + lock.micro
        self.locks[node] = lock

    def end_lock(self, node: str, bps: int) -> int:
        """End a node's lock, if there is one: a share to the payer, the rest is free; return it."""
        lock = self.locks.pop(node, None)
        if lock is None:
            return 0
        left = min(lock.micro, self.locked[lock.agent])  # a refund may have taken of it
        lost = left * bps // 10_000
        self.locked[lock.agent] -= left
        self.stakes[lock.agent] += left - lost
        self.wallets[lock.payer] += lost
        return lost
