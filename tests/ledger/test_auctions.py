"""Auctions by the cases of money.md: bids through the real commands, awards by the real rules."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.errors import ErrorCode, ServiceError
from core.market.auction import LIVE_BIDS_MAX, Award, Bid, award_auction, displaced_bid
from core.workflow.events import AuctionClosed, AuctionOpened, NodeChanged
from core.workflow.transitions import NodeStatus
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.auctions import (
    EndBidding,
    PlaceBid,
    bid_key,
    bids_key,
)
from ledger.writer.state_cache import OpenRound
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AT,
    CREDIT,
    PAYER,
    Flow,
    NextWriter,
    card,
)

CLOSES = AT + 5_000
RESERVE = CREDIT
A, B, C = "did:test:a", "did:test:b", "did:test:c"


def opened(round_: int = 1, *, reserve: int = RESERVE) -> AuctionOpened:
    """Return the beginning of a round."""
    return AuctionOpened("a", round_, "cap.test.echo.v1", reserve, 1_000, AT, CLOSES)


def waiting(round_: int = 1) -> NodeChanged:
    """Return the row of a node whose auction is open."""
    return NodeChanged("a", NodeStatus.READY, auction_round=round_, auction_closes_ms=CLOSES)


async def auctioned(store: LedgerStore, *dids: str, reserve: int = RESERVE) -> Flow:
    """Open a ledger with an auction that is open, and these agents of an owner each."""
    flow = Flow()
    cards = [card(did, owner_did=f"{did}:owner") for did in dids]
    published = flow.publish(records=(opened(reserve=reserve), waiting()))
    outcomes = await store.commit([*cards, published], AT)
    assert all(one.status is OutcomeStatus.APPLIED for one in outcomes), outcomes
    return flow


def bid(flow: Flow, did: str, micro: int, **changes: Any) -> PlaceBid:
    """Return an agent's own bid."""
    fields: dict[str, Any] = {
        "key": bid_key(flow.id, "a", 1, did),
        "request_hash": b"b",
        "actor_did": did,
        "is_admin": False,
        "agent_did": did,
        "workflow_id": flow.id,
        "node": "a",
        "round": 1,
        "amount_micro": micro,
        "eta_ms": None,
        "stake_offered_micro": None,
    }
    return PlaceBid(**{**fields, **changes})


def end(flow: Flow, round_: int = 1) -> EndBidding:
    """Return the question for a round's bids."""
    return EndBidding(
        key=bids_key(flow.id, "a", round_),
        member=flow.member,
        shard_epoch=flow.epoch,
        workflow_id=flow.id,
        node="a",
        round=round_,
    )


async def one(store: LedgerStore, command: PlaceBid | EndBidding, at_ms: int = AT + 1) -> Outcome:
    """Commit a command and return its outcome."""
    return (await store.commit([command], at_ms))[0]


def judged(outcome: Outcome, reserve: int = RESERVE) -> Award | None:
    """Return who wins what the ledger has told."""
    bids = [
        Bid(b["agentDid"], b["amountMicro"], b["etaMs"], b["stakeOfferedMicro"], b["receivedMs"])
        for b in outcome.result["bids"]
    ]
    return award_auction(bids, reserve_micro=reserve)


async def test_case_24_once_the_bids_are_told_none_comes_even_if_the_clock_steps_back(
    store: LedgerStore,
) -> None:
    flow = await auctioned(store, A, B)
    await one(store, bid(flow, A, 7))
    first = await one(store, end(flow), CLOSES)
    assert (await one(store, bid(flow, B, 1), CLOSES - 100)).error is ErrorCode.CONFLICT
    again = await one(store, end(flow), CLOSES + 9)
    assert (again.status, again.result) == (OutcomeStatus.REPEATED, first.result)


async def test_case_24_nor_if_the_writer_that_told_them_is_gone_and_the_next_ones_clock_is_behind(
    store: LedgerStore, next_writer: NextWriter
) -> None:
    """A bid that is taken after the others were told would never be heard."""
    flow = await auctioned(store, A, B)
    await one(store, bid(flow, A, 7))
    await one(store, end(flow), CLOSES)
    store = await next_writer()
    assert (await one(store, bid(flow, B, 1), CLOSES - 100)).error is ErrorCode.CONFLICT


async def test_until_the_close_the_chain_says_who_has_bid_and_not_how_much(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = await auctioned(store, A)
    await one(store, bid(flow, A, 123_457))
    assert auditor.one("SELECT count(*) FROM event WHERE event_type = 'bid.placed'") == 1
    assert auditor.one("SELECT count(*) FROM audit WHERE body LIKE '%%123457%%'") == 0
    told = Bid(A, 123_457, None, None, AT + 1)
    standing = Bid(B, 10, None, None, 0, is_standing=True)
    closed = AuctionClosed("a", 1, A, 123_457, (told, standing), ((B, "revoked"),), unlisted=7)
    dispatched = NodeChanged("a", NodeStatus.DISPATCHED, attempt=1, agent_did=A, auction_round=1)
    await store.commit([flow.advance(closed, dispatched)], CLOSES)
    payload = auditor.one("SELECT payload FROM event WHERE event_type = 'auction.closed'")
    assert payload["bids"] == [
        {"agentDid": A, "bidCredits": "0.123457", "isStanding": False, "excluded": None},
    ]
    assert payload["unlistedBids"] == 8
    assert B not in str(payload)
    rows = auditor.connection.execute("SELECT agent_did, is_standing FROM bid ORDER BY agent_did")
    assert rows.fetchall() == [(A, False), (B, True)]
    assert auditor.one("SELECT excluded FROM auction") == {B: "revoked"}


async def test_case_25_the_next_round_takes_new_bids_under_new_keys(store: LedgerStore) -> None:
    flow = await auctioned(store, A, B)
    await one(store, bid(flow, A, 7))
    failed = AuctionClosed("a", 1, A, 7, ())
    again = (opened(2), waiting(2))
    await store.commit([flow.advance(failed, *again)], AT + 9)
    assert (await one(store, bid(flow, B, 3))).error is ErrorCode.CONFLICT  # round 1 is over
    second = bid(flow, A, 9, key=bid_key(flow.id, "a", 2, A), round=2)
    assert (await one(store, second)).status is OutcomeStatus.APPLIED
    told = await one(store, end(flow, 2), CLOSES)
    assert [b["amountMicro"] for b in told.result["bids"]] == [9]


async def test_an_agent_bids_itself_or_by_its_owner_and_by_nobody_else(store: LedgerStore) -> None:
    flow = await auctioned(store, A, B, C)
    stranger = bid(flow, A, 7, actor_did=PAYER, key="x")
    assert (await one(store, stranger)).error is ErrorCode.FORBIDDEN
    for did, changes in ((A, {}), (B, {"actor_did": f"{B}:owner"}), (C, {"is_admin": True})):
        actor = {"actor_did": PAYER} if did == C else {}
        placed = await one(store, bid(flow, did, 7, **{**actor, **changes}))
        assert placed.status is OutcomeStatus.APPLIED, did


async def test_a_full_round_holds_its_lowest_bids(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """Everything that was bid in a round was held, told and weighed, however much that was."""
    dids = [f"did:test:{number:04}" for number in range(LIVE_BIDS_MAX)]
    flow = await auctioned(store, A, B, *dids)
    for first in range(0, LIVE_BIDS_MAX, 256):
        some = [bid(flow, did, 500_000 + int(did[-4:])) for did in dids[first : first + 256]]
        taken = await store.commit(some, AT + 1)
        assert all(outcome.status is OutcomeStatus.APPLIED for outcome in taken)
    highest = 500_000 + LIVE_BIDS_MAX - 1
    refused = await one(store, bid(flow, A, highest), AT + 2)
    assert refused.error is ErrorCode.CONFLICT
    assert "1024 bids" in refused.detail
    assert (await one(store, bid(flow, A, highest - 1))).error is None
    again = await one(store, bid(flow, dids[-1], 7))
    assert again.status is OutcomeStatus.REPEATED, "its bid is final, although it was displaced"
    # Another writer reads the same out of the rows.
    store = await next_writer()
    assert (await one(store, bid(flow, B, 1))).error is None
    told = (await one(store, end(flow), CLOSES)).result["bids"]
    assert {one["agentDid"] for one in told} == {B, *dids[:-1]}
    assert len(told) == LIVE_BIDS_MAX
    assert auditor.one("SELECT count(*) FROM bid") == LIVE_BIDS_MAX + 2, "their rows stand"


def test_a_refused_bid_is_compared_with_one_bid_alone() -> None:
    class Bids(dict[str, Bid]):
        looked_through = 0

        def values(self) -> Any:
            self.looked_through += 1
            return super().values()

    held = Bids({f"a{n}": Bid(f"a{n}", 1, None, None, n) for n in range(LIVE_BIDS_MAX)})
    round_ = OpenRound(1, 9, 9, held)
    for _ in range(3):
        refused = displaced_bid(Bid("b", 2, None, None, 0), round_.highest())
        assert isinstance(refused, ServiceError)
    assert held.looked_through == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_what_a_round_holds_does_not_depend_on_when_it_was_full(amounts: list[int]) -> None:
    filler = {f"low{number}": Bid(f"low{number}", 0, None, None, 0) for number in range(1_021)}
    round_ = OpenRound(1, 9, 9, dict(filler))
    bids = [Bid(f"did:{at}", micro + 1, None, None, at) for at, micro in enumerate(amounts)]
    for new in bids:
        displaced = displaced_bid(new, round_.highest())
        if not isinstance(displaced, ServiceError):
            round_.hold(new, displaced)
    lowest = sorted(bids, key=lambda one: (one.amount_micro, one.received_ms))
    assert set(round_.bids) - set(filler) == {
        one.agent_did for one in lowest[: LIVE_BIDS_MAX - 1_021]
    }
