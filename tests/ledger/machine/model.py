"""The ledger's money as plain integers, to be compared with the real one after every step.

Written without looking at how the ledger plans: dicts, sums and the rules of money.md (Settlement).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from core.errors import ErrorCode
from core.market.settlement import PaymentSplit
from core.market.sharing.quota import day_start_ms
from core.money import ISSUED_MICRO_MAX, MICRO_MAX, MICRO_PER_CENT

BPS = 10_000
# Contract.md section 6, Slash triggers: what an agent is to blame for.
BLAMED = {
    "AGENT_ERROR",
    "AGENT_TIMEOUT",
    "INVALID_REPLY",
    "RESULT_TOO_LARGE",
    "OUTPUT_SCHEMA",
    "VERIFICATION_REJECTED",
}
# What is counted of nodes that have ended, and apart of those at a price above 0.
COUNTED = ("successful", "failed", "cancelled", "latency_ms_sum")

Place = tuple[str, str]


@dataclass
class Line:
    """One payment: who got it, its two parts, what of each has come back, who is billed for it."""

    workflow_id: str
    node: str
    payer: str
    agent: str
    paid: PaymentSplit
    at_ms: int
    back: PaymentSplit = field(default_factory=lambda: PaymentSplit(0, 0))
    invoice: str | None = None

    @property
    def gross(self) -> int:
        """What was paid, fee included."""
        return self.paid.agent_micro + self.paid.fee_micro

    @property
    def left(self) -> int:
        """What is still paid of it."""
        return self.gross - self.back.agent_micro - self.back.fee_micro


@dataclass
class Round:
    """A round of a node's auction. `bids`: by agent, amount and offered stake, as they came;
    `locked`: what each has locked."""

    number: int
    reserve: int
    stake_bps: int
    closes_ms: int
    bids: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    is_told: bool = False
    locked: dict[str, int] = field(default_factory=dict)


@dataclass
class Work:
    """A node as its owner sees it. `asked`: what it has asked to be locked, granted or not."""

    name: str
    agent: str = ""
    attempt: int = 0
    price: int = 0
    asked: int = 0
    verifications: int = 0
    rounds: int = 0
    round: Round | None = None
    tried: tuple[str, ...] = ()
    is_at_work: bool = False

    @property
    def has_winner(self) -> bool:
        """Whether an auction has found its agent, who keeps it through its retries."""
        return self.rounds > 0 and self.agent != "" and self.agent not in self.tried

    @property
    def lacks_winner(self) -> bool:
        """Whether its rounds have left it without an agent: another one must come first."""
        return self.rounds > 0 and not self.has_winner


@dataclass
class Contract:
    """A workflow: what was held, what is left or came back, and its unfinished nodes."""

    payer: str
    hold: int
    fee_bps: int
    rest: int
    published_ms: int
    is_running: bool = True
    works: dict[str, Work] = field(default_factory=dict)

    @property
    def unreserved(self) -> int:
        """What no unfinished node is meant to cost."""
        prices = sum(work.price for work in self.works.values())
        reserves = sum(work.round.reserve for work in self.works.values() if work.round)
        return max(0, self.rest - prices - reserves)


@dataclass
class Limits:
    """A payer's quota."""

    per_day: int | None = None
    at_once: int | None = None
    cents: int | None = None


class MoneyModel:
    """Who has what; every method is what one accepted command, or a part of it, does to it."""

    def __init__(self, dids: list[str], *, fee: int) -> None:
        self.wallets = dict.fromkeys(dids, 0)
        self.stakes: dict[str, int] = {}
        self.locked: dict[str, int] = {}
        # By agent, then depositor: what of the stake is whose, as of its last change.
        self.shares: dict[str, dict[str, int]] = {}
        self.locks: dict[Place, int] = {}
        self.contracts: dict[str, Contract] = {}
        self.lines: list[Line] = []
        self.limits: dict[str, Limits] = {}
        # By agent: how many nodes ended in each way, and how long the successful ones took.
        self.tallies: dict[str, Counter[str]] = {}
        self.fee = fee

    def room(self, did: str) -> int:
        """Return what may be deposited: wallet, holds and stakes together have a bound."""
        held = sum(
            item.rest for item in self.contracts.values() if item.payer == did and item.is_running
        )
        staked = sum(shares.get(did, 0) for shares in self.shares.values())
        return MICRO_MAX - self.wallets[did] - held - staked

    def takes_deposit(self, did: str, micro: int, issued: int) -> bool:
        """Say whether a deposit is within the bounds; `issued`: all that was deposited before.

        Shares bear a slash only once they are settled: until then an owner's part counts whole, but
        no command is refused while all that is issued is within the bound of one owner.
        """
        is_little = issued + micro <= MICRO_MAX
        return issued + micro <= ISSUED_MICRO_MAX and (is_little or micro <= self.room(did))

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

    # -- workflows --------------------------------------------------------------------------------

    def publish_error(self, payer: str, hold: int, now_ms: int) -> ErrorCode | None:
        """Say why a publish must be refused, counted anew from all contracts of the payer."""
        if hold > self.wallets[payer]:
            return ErrorCode.INSUFFICIENT_CREDITS
        published, running, spend = self.usage(payer, now_ms)
        limits = self.limits.get(payer, Limits())
        room = [
            limits.per_day is None or published < limits.per_day,
            limits.at_once is None or running < limits.at_once,
            limits.cents is None or spend + hold <= limits.cents * MICRO_PER_CENT,
        ]
        return None if all(room) else ErrorCode.QUOTA_EXCEEDED

    def usage(self, payer: str, now_ms: int) -> tuple[int, int, int]:
        """Return how many workflows a payer has published that day, how many run, what that day's
        cost (cases 37 and 38)."""
        own = [item for item in self.contracts.values() if item.payer == payer]
        day_ms = day_start_ms(now_ms)
        todays = [item for item in own if day_start_ms(item.published_ms) == day_ms]
        spend = sum(item.hold if item.is_running else item.hold - item.rest for item in todays)
        return len(todays), sum(item.is_running for item in own), spend

    def room_of_day(self, payer: str, now_ms: int) -> int | None:
        """Return what a payer's quota lets it hold that day, None without such a limit."""
        cents = self.limits.get(payer, Limits()).cents
        return None if cents is None else cents * MICRO_PER_CENT - self.usage(payer, now_ms)[2]

    def publish(
        self, workflow_id: str, payer: str, hold: int, fee_bps: int, now_ms: int
    ) -> Contract:
        self.wallets[payer] -= hold
        contract = Contract(payer, hold, fee_bps, hold, now_ms)
        self.contracts[workflow_id] = contract
        return contract

    def pay(self, workflow_id: str, line: str, agent: str, gross: int, now_ms: int) -> None:
        contract = self.contracts[workflow_id]
        fee = gross * contract.fee_bps // BPS
        contract.rest -= gross
        self.wallets[agent] += gross - fee
        self.fee += fee
        paid = PaymentSplit(gross - fee, fee)
        if gross == fee and "#" in line:
            agent = ""  # a verifier that got nothing stands nowhere
        self.lines.append(Line(workflow_id, line, contract.payer, agent, paid, now_ms))

    def end(self, workflow_id: str) -> int:
        """End a workflow; return what comes back."""
        contract = self.contracts[workflow_id]
        rest = contract.rest
        self.wallets[contract.payer] += rest
        contract.is_running = False
        contract.works.clear()
        return rest

    # -- stakes -----------------------------------------------------------------------------------

    def room_of_stake(self, agent: str) -> int:
        """Return what may still be put up: an agent's stake has a bound of its own."""
        return MICRO_MAX - self.stakes.get(agent, 0) - self.locked.get(agent, 0)

    def deposit_stake(self, agent: str, depositor: str, micro: int) -> None:
        """Move credits of a depositor into the stake; a negative amount takes them back."""
        shares = self.settled(agent)
        shares[depositor] = shares.get(depositor, 0) + micro
        self.shares[agent] = shares
        self.wallets[depositor] -= micro
        self.stakes[agent] = self.stakes.get(agent, 0) + micro

    def settled(self, agent: str) -> dict[str, int]:
        """Return the shares of a stake, each depositor bearing its part of what was lost since."""
        shares = dict(self.shares.get(agent, {}))
        before = sum(shares.values())
        now = self.stakes.get(agent, 0) + self.locked.get(agent, 0)
        exact = {did: Fraction(micro * now, before or 1) for did, micro in shares.items()}
        rest = now - sum(int(part) for part in exact.values())
        order = sorted(shares, key=lambda did: (-shares[did], did))
        for place, did in enumerate(order):
            shares[did] = int(exact[did]) + (place < rest)
        return shares

    def inherit(self, agent: str, owner: str, heir: str) -> int:
        """Give an agent's wallet, and its and its owner's shares, to an heir; return the former."""
        shares = self.settled(agent)
        moved = sum(shares.pop(did, 0) for did in (agent, owner))
        if moved:
            shares[heir] = shares.get(heir, 0) + moved
            self.shares[agent] = shares
        micro, self.wallets[agent] = self.wallets[agent], 0
        self.wallets[heir] += micro
        return micro

    def lock(self, place: Place, agent: str, micro: int) -> bool:
        """Put a part of the free stake at risk; False: there is too little of it (case 26)."""
        if micro > self.stakes.get(agent, 0) or agent not in self.stakes:
            return False
        self.stakes[agent] -= micro
        self.locked[agent] = self.locked.get(agent, 0) + micro
        self.locks[place] = micro
        return True

    def lock_bid(self, round_: Round, agent: str) -> None:
        """Lock the most that a bid may require, or what is offered or free if that is less."""
        amount, offered = round_.bids[agent]
        free = self.stakes.get(agent, 0)
        most = min(amount, -(-3 * amount * round_.stake_bps // (2 * BPS)))
        micro = min(most, free, free if offered is None else offered)
        round_.locked[agent] = micro
        if micro:
            self.stakes[agent] -= micro
            self.locked[agent] = self.locked.get(agent, 0) + micro

    def free_bids(self, round_: Round) -> None:
        """End the locks of a round's bids: what is left of them is free."""
        for agent, micro in round_.locked.items():
            there = min(micro, self.locked.get(agent, 0))
            if there:
                self.locked[agent] -= there
                self.stakes[agent] += there

    def free(self, place: Place, agent: str, lost_bps: int = 0) -> int:
        """End a lock: a share of what is left of it is the payer's (cases 26 to 28); return it."""
        there = min(self.locks.pop(place, 0), self.locked.get(agent, 0))
        lost = there * lost_bps // BPS
        if there:
            self.locked[agent] -= there
            self.stakes[agent] += there - lost
        self.wallets[self.contracts[place[0]].payer] += lost
        return lost

    def count(self, agent: str, how: str, latency_ms: int = 0, *, price: int) -> None:
        """Count a node's end for the agent of its last attempt (rule 9), apart if it was paid."""
        tally = self.tallies.setdefault(agent, Counter())
        for prefix in ("", "paid_") if price else ("",):
            tally[f"{prefix}{how}"] += 1
            tally[f"{prefix}latency_ms_sum"] += latency_ms
