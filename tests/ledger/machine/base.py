"""What every rule of the money machine stands on: one ledger, its model, and what must hold.

After every step: entries replayed in order never overdraw an account, each balance is the sum of
its entries, all balances sum to 0, the chain goes on, and the database agrees with the model. At
the end of every history all books are checked whole, and replayed from the first entry.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from core.shards.lease_messages import HeldShard
from core.shards.shard import SHARDS, shard_of
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.auctions import EndBidding, PlaceBid
from ledger.features.books import BooksCheck
from ledger.features.shards import ChangeMember, GiveShards, JoinCluster, TakeShards
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, Replay, wrong_row
from tests.ledger.machine.model import COUNTED, Contract, MoneyModel, Work
from tests.ledger.machine.reviewing import Reviews
from tests.ledger.making import AT, Flow, ToldLives, card, deposit, new_id, open_store

T = TypeVar("T")

amounts = st.one_of(st.integers(1, 40), st.integers(1, 10**12))
few = st.integers(0, 2)
four = st.integers(0, 3)
any_index = st.integers(0, 99)
# Percents: above 100 there is more asked than there is, and the command must be refused.
shares = st.integers(0, 110)
asking = st.sampled_from(["agent", "agent", "agent", "owner", "owner", "owner", "stranger"])

STEPS_BETWEEN_LOOKS_AT_ROWS = 10
DID_CHARACTERS_MAX = 256


def share_of(whole: int, percent: int) -> int:
    """Return a share, rounded up; above 100 more than there is."""
    return (whole * percent + 99) // 100 + (percent > 100)


class MoneyMachine(RuleBasedStateMachine):
    """A ledger and its model; the rules are in the files beside."""

    database: ClassVar[Database]
    auditor: ClassVar[Auditor]
    replay: ClassVar[Replay]
    steps: ClassVar[int]
    # What was committed so far, by kind: commands that were applied, and the records in them.
    applied: ClassVar[Counter[type]]

    @classmethod
    def start(cls, database: Database) -> None:
        """Begin with another database."""
        cls.database, cls.auditor = database, Auditor(database.superuser_url)
        cls.replay, cls.steps, cls.applied = Replay(), 0, Counter()

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.now = AT + 10_000  # a new writer whose clock is behind must not come before AT
        self.lives = ToldLives()
        self.store: LedgerStore = self.reopened()
        self.reader = LedgerReader(self.database.service_url, pool_size=1)
        # Time never goes back behind what earlier histories have committed.
        self.now = max(self.now, self.store.cache.head.latest_ms + 1)
        self.own_steps = 0
        # Every balance as it was compared last: only what has changed since is asked for again.
        self.compared: dict[str, int] = {}
        self.last_done: Counter[str] = Counter()
        name = new_id()
        payers = [f"did:payer:{name}:{number}" for number in range(3)]
        self.agents = [f"did:agent:{name}:{number}" for number in range(3)]
        # As long as a DID may be.
        payers[2] = payers[2].ljust(DID_CHARACTERS_MAX, "x")
        self.agents[2] = self.agents[2].ljust(DID_CHARACTERS_MAX, "x")
        # An agent may publish, too: then it has spent what a refund would take.
        self.payers = [*payers, self.agents[1]]
        fee = self.auditor.one("SELECT balance FROM account WHERE address = 'fee'")
        self.model = MoneyModel([*payers, *self.agents], fee=fee)
        self.reviews = Reviews(self.model)
        self.flows: list[Flow] = []
        # By shard, as the model has it.
        self.holders = [HeldShard("", 0)] * SHARDS
        self.nodes = 0
        self.history: list[tuple[Command, Outcome]] = []
        # The first payer owns the first agent; the others own themselves.
        self.active = dict.fromkeys(self.agents, True)
        proof = OwnershipProof.OPERATOR  # without one an agent has no heir
        cards = [card(did, owner_did=self.owner_of(did), proof=proof) for did in self.agents]
        self.run(self.store.commit(cards, self.now))
        self.begin_with_members(name)
        self.equip()
        self.replay.follow(self.auditor)  # what a failing run before left behind, too

    def equip(self) -> None:
        """Begin with some money in every purse: no history should depend on one rule."""
        raise NotImplementedError

    def begin_with_members(self, name: str) -> None:
        """Let two members hold every shard, in the place of those of the history before."""
        raise NotImplementedError

    def reopened(self) -> LedgerStore:
        """Open the ledger as its next writer."""
        return self.run(open_store(self.database.service_url, lives=self.lives))

    def new_flow(self, **fields: Any) -> Flow:
        """Return a workflow in the making, of the member that holds its shard."""
        flow = Flow(0, **fields)
        self.follow_shard(flow)
        return flow

    def follow_shard(self, flow: Flow) -> None:
        """Let the commands of a workflow be those of the member that holds its shard now."""
        held = self.holders[shard_of(flow.id)]
        flow.member, flow.epoch = held.member, held.epoch

    def owner_of(self, did: str) -> str:
        return self.payers[0] if did == self.agents[0] else did

    def actor(self, did: str, asking: str) -> str:
        """Return who asks: the agent itself, its owner, or a caller who is neither."""
        if asking == "stranger":
            return self.payers[2]
        return self.owner_of(did) if asking == "owner" else did

    # -- committing -------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        # Not `Runner.run`, which sets signals for each: a fifth of a commit's time.
        return self.runner.get_loop().run_until_complete(work)

    def read(self, work: Callable[[LedgerReader], Coroutine[Any, Any, T]]) -> T:
        """Read what is committed, as a process beside the writer does."""

        return self.run(work(self.reader))

    def commit(self, *commands: Command) -> list[Outcome]:
        """Commit one batch, a millisecond after the one before."""
        self.now += 1
        outcomes = self.run(self.store.commit(commands, self.now))
        for command, outcome in zip(commands, outcomes, strict=True):
            if outcome.status is OutcomeStatus.APPLIED:
                self.applied[type(command)] += 1
                if isinstance(command, PublishWorkflow | AdvanceWorkflow):
                    self.applied.update(type(record) for record in command.records)
            if leaves_a_trace(command, outcome):
                self.history.append((command, outcome))
        return outcomes

    def one(self, command: Command) -> Outcome:
        """Commit a command alone."""
        (outcome,) = self.commit(command)
        return outcome

    def applies(self, command: Command) -> dict[str, Any]:
        """Commit a command, which must be applied; return its result."""
        outcome = self.one(command)
        assert outcome.status is OutcomeStatus.APPLIED, (command, outcome)
        return outcome.result

    def refuses(self, command: Command, error: ErrorCode) -> None:
        """Commit a command, which must be refused like this."""
        outcome = self.one(command)
        assert (outcome.status, outcome.error) == (OutcomeStatus.REJECTED, error), (
            command,
            outcome,
        )

    def deposits(self, did: str, micro: int) -> None:
        """Deposit, which must be refused beyond what an owner may have in all."""
        issued = -self.auditor.one("SELECT balance FROM account WHERE address = 'world'")
        if self.model.takes_deposit(did, micro, issued):
            self.model.wallets[did] += micro
            result = self.applies(deposit(micro, owner_did=did))
            assert result["balanceMicro"] == self.model.wallets[did]
        else:
            self.refuses(deposit(micro, owner_did=did), ErrorCode.INVALID_REQUEST)

    def is_due(self, name: str, pause: int) -> bool:
        """Say whether so many steps have passed since something rare or costly was done."""
        return self.own_steps - self.last_done[name] >= pause

    def done_now(self, name: str) -> None:
        self.last_done[name] = self.own_steps

    # -- what there is to choose from -------------------------------------------------------------

    def flow(self, index: int) -> Flow:
        return self.flows[index % len(self.flows)]

    def contract(self, flow: Flow) -> Contract:
        return self.model.contracts[flow.id]

    def works(self, *, at_work: bool) -> list[tuple[Flow, Work]]:
        """Return the nodes that an agent is at work on; or those that wait for an agent."""
        return [
            (flow, work)
            for flow in self.flows
            for work in self.contract(flow).works.values()
            if (work.is_at_work if at_work else not work.is_at_work and work.round is None)
        ]

    def rounds(self, *, told: bool) -> list[tuple[Flow, Work]]:
        """Return the nodes whose round is open: its bids are told, or not yet."""
        return [
            (flow, work)
            for flow in self.flows
            for work in self.contract(flow).works.values()
            if work.round is not None and work.round.is_told is told
        ]

    # -- what must hold ---------------------------------------------------------------------------

    @invariant()
    def books_are_sound(self) -> None:
        if not hasattr(self, "members"):
            return
        type(self).steps += 1
        self.own_steps += 1
        expected = self.model.balances()
        changed = [name for name, micro in expected.items() if self.compared.get(name) != micro]
        stored = self.replay.follow(self.auditor, changed)
        stored.pop("world", None)
        assert stored.keys() <= expected.keys(), "an account moved that the model does not know"
        for address in {*stored, *changed}:
            assert stored.get(address, 0) == expected[address], address
        self.compared = expected
        if self.own_steps % STEPS_BETWEEN_LOOKS_AT_ROWS == 0:
            self._compare_locks()

    def teardown(self) -> None:
        if not hasattr(self, "members"):
            return
        self.auditor.check()
        assert self.run(wrong_row(BooksCheck(self.reader.rows))) is None
        keys = [command.key for command, _ in self.history]
        found = self.auditor.one("SELECT count(*) FROM command WHERE id = ANY(%s)", keys)
        assert found == len(set(keys))
        self._compare_locks()
        self._compare_tallies()
        rows = self.auditor.connection.execute("SELECT member, epoch FROM shard ORDER BY id")
        assert [HeldShard(*row) for row in rows.fetchall()] == self.holders
        self.run(self.reader.close())
        self.run(self.store.close())
        self.runner.close()

    def _compare_locks(self) -> None:
        """What nodes say that is locked with them is what the model has locked."""
        rows = self.auditor.connection.execute(
            "SELECT workflow_id::text, name, stake_micro FROM node"
            " WHERE stake_micro > 0 AND workflow_id = ANY(%s::uuid[])",
            (list(self.model.contracts),),
        )
        stored = {(row[0], row[1]): row[2] for row in rows.fetchall()}
        assert stored == self.model.locks, (stored, self.model.locks)

    def _compare_tallies(self) -> None:
        names = [f"{prefix}{name}" for prefix in ("", "paid_") for name in COUNTED]
        rows = self.auditor.connection.execute(
            f"SELECT agent_did, {', '.join(names)} FROM reputation WHERE agent_did = ANY(%s)",
            ([*self.agents, *self.payers],),
        )
        stored = {row[0]: row[1:] for row in rows.fetchall()}
        counted = {
            did: tuple(tally[name] for name in names) for did, tally in self.model.tallies.items()
        }
        assert stored == counted, (stored, counted)


def leaves_a_trace(command: Command, outcome: Outcome) -> bool:
    """Say whether a command's first outcome stands under its key from now on."""
    if isinstance(command, JoinCluster | ChangeMember | TakeShards | GiveShards):
        # None of their refusals is stored, and none that moved nothing.
        moved = outcome.result.get("taken", outcome.result.get("given", True))
        return outcome.status is OutcomeStatus.APPLIED and bool(moved)
    if outcome.status is OutcomeStatus.APPLIED:
        return True
    # The key of a bid is the agent's; a quota's refusal passes by itself, and so does that of a
    # halted workflow's step. A step that quarantines its workflow leaves its key free.
    is_released = outcome.error is ErrorCode.ESCROW_RELEASED
    is_free = isinstance(command, AdvanceWorkflow) and not is_released
    return (
        outcome.status is OutcomeStatus.REJECTED
        and not is_free
        and not isinstance(command, PlaceBid | EndBidding)
        and outcome.error not in (ErrorCode.QUOTA_EXCEEDED, ErrorCode.KEY_REUSED)
    )
