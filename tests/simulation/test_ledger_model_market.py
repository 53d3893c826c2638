"""The simulation's ledger held to the real one where stakes and auctions are concerned.

Random sequences of what members and bidders send: too late, twice, without the stake for it, at a
clock that goes back now and then. Compared is what `test_ledger_model.py` compares.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, NodeErrorCode
from core.market.auction import Bid
from core.workflow.events import (
    AttemptFinished,
    AuctionClosed,
    AuctionOpened,
    NodeChanged,
    Record,
    StakeFreed,
    StakeLocked,
    WorkflowChanged,
)
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.auctions.auction_commands import (
    EndBidding,
    PlaceBid,
    bid_key,
    bids_key,
)
from ledger.commands import Command, OutcomeStatus
from ledger.reads.reader import LedgerReader
from ledger.stakes.stake_commands import DepositStake
from ledger.workflows.workflow_commands import AdvanceWorkflow, PublishWorkflow
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AT, MEMBER, PAYER, Flow, card, deposit, join, take
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.test_ledger_model import (
    assert_same,
    assert_same_balances,
    assert_same_market,
    assert_same_rows,
    writer,
)

pytestmark = pytest.mark.anyio

AGENTS = ("did:test:one", "did:test:two", "did:test:three")
STANDING = "did:test:standing"  # never bids live
STEPS = 150
RESERVE = 1_000
FRAUD_BPS = 7_777
# Some cost stake, some do not.
CODES = ("AGENT_ERROR", "AGENT_TIMEOUT", "OUTPUT_SCHEMA", "VERIFICATION_REJECTED", "CANCELLED",
         "WORKFLOW_TIMEOUT", "BUDGET_EXCEEDED", "NO_CANDIDATE", "AGENT_UNAVAILABLE")  # fmt: skip
BLAMED = CODES[:4]
ENDS = (NodeStatus.FAILED, NodeStatus.TIMEOUT, NodeStatus.SKIPPED)


@dataclass
class Place:
    """A node, and what its member believes of it; `lock` has agent and amount."""

    flow: Flow
    name: str
    attempt: int = 0
    lock: tuple[str, int] | None = None
    round: int = 0
    is_round_open: bool = False
    is_over: bool = False


class MarketChaos:
    """Random commands about a few nodes; of one node at most one step in a batch."""

    def __init__(self, seed: int, epoch: int) -> None:
        self.chance = random.Random(f"market {seed}")
        self.now_ms = AT
        self._epoch = epoch
        self._places: list[Place] = []
        self._busy: set[str] = set()
        self._sent: list[Command] = []

    def batch(self) -> list[Command]:
        """Return the next commands; time goes on by less than a window, or back."""
        self.now_ms += self.chance.choice((0, 1, 40, 40, 200, -30))
        self._busy.clear()
        return [self._command() for _ in range(self.chance.choice((1, 2, 5, 12)))]

    def _command(self) -> Command:
        if self._sent and self.chance.random() < 0.1:
            return self.chance.choice(self._sent)
        makers = (self._stake, self._publish, self._bid, self._bid, self._end_bidding)
        steps = (self._step,) * 5
        made = self.chance.choice(makers + steps)()
        self._sent.append(made)
        return made

    def _stake(self) -> Command:
        did = self.chance.choice(AGENTS)
        return DepositStake(
            key=f"stake:{self.chance.randrange(30)}",
            request_hash=did.encode(),
            actor_did=did,
            is_admin=False,
            agent_did=did,
            amount_micro=self.chance.choice((1, 500, 3_000, 10**9)),
        )

    def _publish(self) -> PublishWorkflow:
        flow = Flow(self._epoch)
        self._busy.add(flow.id)
        places = [Place(flow, name) for name in ("a", "b", "c")]
        self._places += places
        started: Record = WorkflowChanged(WorkflowStatus.RUNNING, AT)
        first = self._open_attempt(places[0]) if self.chance.random() < 0.5 else ()
        rows = tuple(NodeChanged(p.name, NodeStatus.READY) for p in places[bool(first) :])
        return flow.publish(records=(started, *rows, *first))

    def _step(self) -> AdvanceWorkflow | PublishWorkflow:
        ready = [p for p in self._places if p.flow.id not in self._busy and not p.is_over]
        if not ready:
            return self._publish()
        place = self.chance.choice(ready)
        self._busy.add(place.flow.id)
        if self.chance.random() < 0.02:
            return place.flow.end(WorkflowStatus.CANCELLED)
        bps = self.chance.choice((0, 1_000, 10_000))
        if place.lock is not None:
            records = self._end_attempt(place)
        elif place.is_round_open:
            records = self._close_round(place)
        elif self.chance.random() < 0.5:
            records = self._open_round(place)
        else:
            records = self._open_attempt(place)
        return replace(place.flow.advance(*records, bps=bps), slash_fraud_bps=FRAUD_BPS)

    def _open_attempt(self, place: Place) -> tuple[Record, ...]:
        did, micro = self.chance.choice(AGENTS), self.chance.choice((1, 499, 2_000, 10**8))
        place.attempt += 1
        place.lock = did, micro
        return StakeLocked(place.name, place.attempt, did, micro), self._row(place)

    def _end_attempt(self, place: Place) -> tuple[Record, ...]:
        assert place.lock is not None
        (did, micro), code = place.lock, self.chance.choice(CODES)
        is_forged = (micro + place.attempt) % 5 == 0
        blamed = NodeErrorCode(code) if code in BLAMED and self.chance.random() < 0.7 else None
        freed = StakeFreed(place.name, place.attempt, did, micro, is_forged, blamed)
        ended = AttemptFinished(
            place.name, place.attempt, did, "error", AT, AT + 5, error_code=code
        )
        place.lock = None
        if self.chance.random() < 0.4:
            return freed, ended, NodeChanged(place.name, NodeStatus.READY, attempt=place.attempt)
        if self.chance.random() < 0.3:
            return freed, ended, *self._open_attempt(place)
        place.is_over = True
        error = {"code": code}
        status = self.chance.choice(ENDS)
        row = NodeChanged(place.name, status, attempt=place.attempt, agent_did=did, error=error)
        return freed, ended, row

    def _row(self, place: Place) -> NodeChanged:
        assert place.lock is not None
        return NodeChanged(
            place.name, NodeStatus.DISPATCHED, attempt=place.attempt, agent_did=place.lock[0],
            stake_micro=place.lock[1], auction_round=place.round,
        )  # fmt: skip

    def _open_round(self, place: Place) -> tuple[Record, ...]:
        place.round += 1
        place.is_round_open = True
        closes_ms = self.now_ms + self.chance.choice((0, 100, 300))
        row = NodeChanged(
            place.name, NodeStatus.READY, attempt=place.attempt, auction_round=place.round,
            auction_closes_ms=closes_ms,
        )  # fmt: skip
        opened = AuctionOpened(
            place.name, place.round, "cap.test.echo.v1", RESERVE, 0, self.now_ms, closes_ms
        )
        return opened, row

    def _close_round(self, place: Place) -> tuple[Record, ...]:
        place.is_round_open = False
        if self.chance.random() < 0.3:
            return (
                AuctionClosed(place.name, place.round, None, None, is_cancelled=True),
                NodeChanged(place.name, NodeStatus.READY, attempt=place.attempt),
            )
        row = self._open_attempt(place)
        assert place.lock is not None
        bid = Bid(STANDING, 7, None, None, AT, is_standing=True)
        return AuctionClosed(place.name, place.round, place.lock[0], 7, (bid,)), *row

    def _bid(self) -> Command:
        place = self._any_round()
        if place is None:
            return self._stake()
        did, number = self.chance.choice(AGENTS), self.chance.choice((place.round,) * 3 + (1,))
        return PlaceBid(
            key=bid_key(place.flow.id, place.name, number, did),
            request_hash=self.chance.choice((b"a", b"b")),
            actor_did=did,
            is_admin=False,
            agent_did=did,
            workflow_id=place.flow.id,
            node=place.name,
            round=number,
            amount_micro=self.chance.choice((-1, 0, 5, RESERVE, RESERVE + 1)),
            eta_ms=None,
            stake_offered_micro=self.chance.choice((None, 10)),
        )

    def _end_bidding(self) -> Command:
        place = self._any_round()
        if place is None:
            return self._stake()
        key = bids_key(place.flow.id, place.name, place.round)
        return EndBidding(
            key=key,
            member=MEMBER,
            shard_epoch=self._epoch - (self.chance.random() < 0.1),
            workflow_id=place.flow.id,
            node=place.name,
            round=place.round,
        )

    def _any_round(self) -> Place | None:
        auctioned = [place for place in self._places if place.round]
        is_open = [place for place in auctioned if place.is_round_open]
        if is_open and self.chance.random() < 0.7:
            return self.chance.choice(is_open[-5:])
        return self.chance.choice(auctioned) if auctioned else None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_store_says_the_same_as_the_model_of_stakes_and_bids(
    seed: int, database: Database, auditor: Auditor
) -> None:
    model = LedgerModel()
    wallets = [deposit(10**10, owner_did=did) for did in (PAYER, *AGENTS)]
    first: list[Command] = [join(), take(), *wallets]
    seen: set[tuple[str, OutcomeStatus, ErrorCode | None]] = set()
    unstaked = 0
    async with writer(database) as store, LedgerReader(database.service_url, pool_size=1) as reader:
        # First, as a DID that has a wallet is not a new one (decision stakes-and-slashing).
        registered = await store.commit([card(did) for did in AGENTS], AT)
        assert {outcome.status for outcome in registered} == {OutcomeStatus.APPLIED}
        assert_same(await store.commit(first, AT), model.commit(first), first)
        chaos = MarketChaos(seed, 1)
        for _ in range(STEPS):
            batch = chaos.batch()
            model.now_ms = partial(int, chaos.now_ms)  # ends are judged by the clock as it is
            outcomes = await store.commit(batch, chaos.now_ms)
            assert_same(outcomes, model.commit(batch), batch)
            unstaked += sum("unstaked" in outcome.result for outcome in outcomes)
            seen |= {
                (type(command).__name__, outcome.status, outcome.error)
                for command, outcome in zip(batch, outcomes, strict=True)
            }
        await assert_same_rows(reader, model)
    assert_same_balances(database.superuser_url, model)
    assert_same_market(database.superuser_url, model)
    assert unstaked, "no lock was refused"
    assert any(lost for _, _, lost in model.ended_locks.values()), "no agent lost a stake"
    for kind in ("PlaceBid", "EndBidding"):
        assert (kind, OutcomeStatus.APPLIED, None) in seen
        assert (kind, OutcomeStatus.REJECTED, ErrorCode.CONFLICT) in seen
    assert ("EndBidding", OutcomeStatus.STALE, None) in seen
    assert ("PlaceBid", OutcomeStatus.REJECTED, ErrorCode.INVALID_REQUEST) in seen
    assert ("EndBidding", OutcomeStatus.REJECTED, ErrorCode.OVERLOADED) in seen
