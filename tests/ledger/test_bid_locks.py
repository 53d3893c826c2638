"""What live bids lock of their agents' stakes, until their round closes or another displaces them.

Reference: money.md (Stakes, Slashing, Auctions).
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.errors import ErrorCode, ServiceError
from core.market.auction import LIVE_BIDS_MAX, Bid, best_held, owner_of
from core.workflow.events import (
    AuctionClosed,
    AuctionOpened,
    NodeChanged,
    StakeLocked,
    WorkflowChanged,
)
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import OutcomeStatus
from ledger.writer.state_cache import OpenRound
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import AT, CREDIT, Flow, NextWriter, card, deposit
from tests.ledger.test_auctions import CLOSES, A, B, auctioned, bid, end, one
from tests.ledger.test_stakes import parts, stake, unstake

START = WorkflowChanged(WorkflowStatus.RUNNING, CLOSES)


async def staked(store: LedgerStore, *dids: str, micro: int = CREDIT) -> Flow:
    """Open a ledger with an open auction, and these agents with so much stake each."""
    flow = await auctioned(store, *dids)
    given = [deposit(micro, owner_did=did) for did in dids]
    put_up = [stake(micro, agent=did, actor=did) for did in dids]
    outcomes = await store.commit([*given, *put_up], AT)
    assert all(outcome.status is OutcomeStatus.APPLIED for outcome in outcomes), outcomes
    return flow


async def test_a_bid_locks_the_most_that_it_may_require_until_its_round_is_awarded(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """A new writer frees what another has locked, and the winner's lock follows at once."""
    flow = await staked(store, A, B, micro=60_000)
    await one(store, bid(flow, A, 200_000))
    await one(store, bid(flow, B, 900_000))
    assert (parts(auditor, A), parts(auditor, B)) == ((30_000, 30_000), (0, 60_000))
    (refused,) = await store.commit([unstake(30_001, agent=A, actor=A)], AT)
    assert refused.error is ErrorCode.STAKE_LOCKED
    told = (await one(store, end(flow), CLOSES)).result["bids"]
    assert [each["stakeLockedMicro"] for each in told] == [30_000, 60_000]
    store = await next_writer()
    closed = AuctionClosed("a", 1, A, 900_000, ())
    dispatched = NodeChanged(
        "a", NodeStatus.DISPATCHED, attempt=1, agent_did=A, stake_micro=55_000, auction_round=1
    )
    lock = StakeLocked("a", 1, A, 55_000)
    (awarded,) = await store.commit([flow.advance(START, closed, dispatched, lock)], CLOSES)
    assert awarded.result == {}, "the lock is not refused: what the bid had locked is free by then"
    assert (parts(auditor, A), parts(auditor, B)) == ((5_000, 55_000), (60_000, 0))
    amounts = auditor.one(
        "SELECT count(*) FROM event WHERE event_type IN ('stake.locked', 'stake.unlocked')"
        " AND payload ->> 'amountCredits' IS NOT NULL"
    )
    assert amounts == 0, "what is locked for a bid tells its amount"
    auditor.check()


async def test_a_round_that_gives_the_award_to_the_next_bid_stores_the_earlier_bids(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = await staked(store, A, B)
    await one(store, bid(flow, A, 7))
    await one(store, bid(flow, B, 9))
    await one(store, end(flow), CLOSES)
    bids = (Bid(A, 7, None, None, AT + 1), Bid(B, 9, None, None, AT + 1))
    first = AuctionClosed("a", 1, A, 9, bids)
    opened = AuctionOpened("a", 2, "cap.test.echo.v1", CREDIT, 1_000, CLOSES, CLOSES)
    second = AuctionClosed("a", 2, B, 9, bids, ((A, "failed_before"),))
    row = NodeChanged("a", NodeStatus.DISPATCHED, attempt=2, agent_did=B, auction_round=2)
    (done,) = await store.commit([flow.advance(START, first, opened, second, row)], CLOSES)
    assert done.status is OutcomeStatus.APPLIED
    assert (parts(auditor, A), parts(auditor, B)) == ((CREDIT, 0), (CREDIT, 0))
    rows = auditor.connection.execute("SELECT round, agent_did FROM bid ORDER BY 1, 2")
    assert rows.fetchall() == [(1, A), (1, B), (2, A), (2, B)]


async def test_a_displaced_bid_frees_its_stake(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """In one batch with others that displace: each has its account."""
    dids = [f"did:test:{number:04}" for number in range(LIVE_BIDS_MAX - 2)]
    flow = await staked(store, A, B, "did:test:c", "did:test:d")
    await auction_of_many(store, flow, dids)
    await one(store, bid(flow, A, 900_000))
    await one(store, bid(flow, B, 800_000))
    store = await next_writer()
    lower = [bid(flow, did, 5) for did in ("did:test:c", "did:test:d")]
    outcomes = await store.commit(lower, AT + 3)
    assert [outcome.status for outcome in outcomes] == [OutcomeStatus.APPLIED] * 2
    assert (parts(auditor, A), parts(auditor, B)) == ((CREDIT, 0), (CREDIT, 0))
    # Its agent's standing bid may count, and has no second row.
    standing = Bid(A, 5, None, None, 0, is_standing=True)
    over = AuctionClosed("a", 1, None, None, (standing,))
    (closed,) = await store.commit([flow.advance(START, over)], CLOSES)
    assert closed.status is OutcomeStatus.APPLIED
    auditor.check()


async def test_the_many_bids_of_one_owner_keep_no_other_out(
    store: LedgerStore, next_writer: NextWriter
) -> None:
    """A payer's thousand agents filled a round: of two honest bids one was left, at its own price.

    A writer that reads the round anew holds the same bids.
    """
    many = [f"did:test:{number:04}" for number in range(LIVE_BIDS_MAX)]
    flow = await staked(store, A, B)
    await auction_of_many(store, flow, many, owner="did:test:rich")
    dear = await one(store, bid(flow, A, 900_000))
    assert dear.status is OutcomeStatus.APPLIED
    store = await next_writer()
    assert (await one(store, bid(flow, B, 800_000))).status is OutcomeStatus.APPLIED
    more = ["did:test:low", "did:test:high"]
    await store.commit([card(did, owner_did="did:test:rich") for did in more], AT + 1)
    assert (await one(store, bid(flow, more[0], 5))).status is OutcomeStatus.APPLIED
    assert (await one(store, bid(flow, more[1], 99))).error is ErrorCode.CONFLICT
    told = (await one(store, end(flow), CLOSES)).result["bids"]
    assert len(told) == LIVE_BIDS_MAX
    assert {A, B, "did:test:low"} <= {each["agentDid"] for each in told}


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("xyz")), max_size=12))
def test_what_a_full_round_holds_follows_from_the_rows_of_its_bids(drawn: list[Any]) -> None:
    """A writer that reads the rows frees what another has locked, and nothing besides."""
    filler = [Bid(f"low{n}", 0, None, None, 0) for n in range(LIVE_BIDS_MAX - 3)]
    round_, rows = OpenRound(1, 9, 9, {one.agent_did: one for one in filler}), [*filler]
    for at, (micro, owner) in enumerate(drawn):
        new = Bid(f"did:{at:02}", micro + 1, None, None, at, owner_did=owner)
        displaced = round_.displaced_by(new)
        if not isinstance(displaced, ServiceError):
            round_.hold(new, displaced)
            rows.append(new)
    best = best_held(rows)
    rows.sort(key=lambda one: (best[owner_of(one)] is not one, one.amount_micro, one.received_ms))
    assert set(round_.bids) == {one.agent_did for one in rows[:LIVE_BIDS_MAX]}


async def auction_of_many(
    store: LedgerStore, flow: Flow, dids: list[str], owner: str | None = None
) -> None:
    """Have so many agents without a stake bid."""
    for first in range(0, len(dids), 256):
        some = dids[first : first + 256]
        cards = [card(did, owner_did=owner or f"{did}:owner") for did in some]
        await store.commit(cards, AT + 1)
        await store.commit([bid(flow, did, 10) for did in some], AT + 1)
