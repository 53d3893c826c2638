"""Auctions in the machine: rounds, windows, winners that fail, and crashes in between.

Reference: money.md (Auctions).
"""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import NodeErrorCode
from core.workflow.actions import DispatchNode
from core.workflow.events import AttemptFailed, AuctionClosed, Failure, Verdict
from core.workflow.rules.retry import AGENTS_PER_NODE_MAX, AGENTS_REFUSING_MAX
from core.workflow.terms import NodeTerms
from tests.core.workflow.auction_engine import AuctionEngine, auctioned
from tests.core.workflow.engine import AGENTS
from tests.core.workflow.stake_book import StakeBook

A, B, C = "did:x:a", "did:x:b", "did:x:c"
BIDS = {A: 10, B: 30, C: 50}


def won(run: AuctionEngine) -> tuple[str | None, int | None]:
    """Return who has won the last round that was closed, at what price."""
    return run.closed[-1].winner_did, run.closed[-1].price_micro


def test_a_window_leaves_the_node_ready_until_the_bids_are_told() -> None:
    run = auctioned("a", window_ms=5_000, standing={A: 40}, live={"a": {B: 20}})
    assert run.statuses() == {"a": "ready"}
    assert run.status == "pending"
    assert run.closing["a"].due_ms == 1_005_000
    run.hear_bids("a")
    assert won(run) == (B, 40)
    assert run.rows["a"].auction_closes_ms is None
    run.run_to_end()
    assert run.paid_micro == 40


def test_case_25_a_winner_that_fails_finally_is_left_out_of_the_next_round() -> None:
    run = auctioned("a", standing=BIDS)
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert won(run) == (B, 50)
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert won(run) == (C, 50)
    run.succeed("a")
    assert run.paid_micro == 50
    assert [closed.round for closed in run.closed] == [1, 2, 3]


def test_case_25_no_bids_left_fails_the_node_as_its_last_agent_failed() -> None:
    run = auctioned("a", standing={A: 10})
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert won(run) == (None, None)
    assert run.statuses() == {"a": "failed"}
    assert run.error_code("a") == NodeErrorCode.AGENT_ERROR


def test_no_bids_at_all_is_no_candidate() -> None:
    run = auctioned("a", window_ms=100)
    run.hear_bids("a")
    assert run.error_code("a") == NodeErrorCode.NO_CANDIDATE


@pytest.mark.parametrize("window_ms", [0, 5_000])
def test_each_round_of_a_node_that_waits_is_closed_in_its_row(window_ms: int) -> None:
    """A successor closed such a round again, under a used key, and sent what no row had."""
    run = auctioned("a", window_ms=window_ms, standing={A: 40}, first_away=(A,))
    for round_ in (1, 2, 3):
        if window_ms:
            run.hear_bids("a")
        row = run.rows["a"]
        assert (row.status, row.auction_round, row.auction_closes_ms) == ("ready", round_, None)
        run.at_ms += 1_000
        run.wake("a")
    run.away.clear()
    run.crash()
    if window_ms:
        run.hear_bids("a")
    run.run_to_end()
    assert (run.status, run.paid_micro) == ("success", 40)


def test_a_winner_keeps_the_node_through_its_retries_at_its_price() -> None:
    run = auctioned("a", standing=BIDS)
    run.fail("a")
    run.standing = {B: 1}
    run.wait_retry("a")
    assert (run.rows["a"].agent_did, run.rows["a"].price_micro) == (A, 30)
    assert len(run.opened) == 1
    run.crash()
    assert run.rows["a"].agent_did == A
    run.succeed("a")
    assert run.paid_micro == 30


@pytest.mark.parametrize("retries", [0, 1])
def test_case_25_a_winner_without_a_retry_left_gives_way_to_the_next_round(retries: int) -> None:
    """A bid of 0 that always fails made every auction fail."""
    run = auctioned("a", standing=BIDS, node={"maxRetries": retries})
    for _ in range(retries):
        run.fail("a")
        run.wait_retry("a")
        assert run.rows["a"].agent_did == A
    run.fail("a")
    assert won(run) == (B, 50)
    run.crash()
    run.fail("a")
    assert won(run) == (C, 50)
    run.succeed("a")
    assert (run.status, run.paid_micro) == ("success", 50)


def test_case_25_three_winners_may_wear_out_their_retries() -> None:
    run = auctioned("a", standing={**BIDS, "did:x:d": 70}, node={"maxRetries": 0})
    for _ in range(AGENTS_PER_NODE_MAX):
        run.fail("a")
    assert run.statuses() == {"a": "failed"}
    assert run.error_code("a") == NodeErrorCode.AGENT_ERROR
    assert len(run.opened) == AGENTS_PER_NODE_MAX


def test_a_winner_that_is_away_is_waited_for_when_nobody_else_bids() -> None:
    run = auctioned("a", standing={A: 10})
    run.fail("a")
    run.away.add(A)
    run.wait_retry("a")
    assert run.statuses() == {"a": "ready"}
    run.away.clear()
    run.wait_retry("a")
    run.succeed("a")
    assert run.status == "success"


def test_an_open_round_ends_with_its_workflow() -> None:
    for end in ("cancel", "exceed_runtime"):
        run = auctioned("a", window_ms=5_000)
        getattr(run, end)()
        assert run.closed == [AuctionClosed("a", 1, None, None, is_cancelled=True)]


def test_an_open_round_ends_with_the_first_failure_of_another_node() -> None:
    node = {"capabilityId": "cap.work"}
    manifest = {"nodes": {"a": {**node, "selection": "auction", "auctionWindowMs": 100}, "b": node}}
    terms = {"a": NodeTerms(None, False, 0, 50, 0)}
    run = AuctionEngine(manifest, AGENTS, reserved={"a": 50, "b": 50}, terms=terms)
    run.accept()
    run.fail("b", Verdict.FINAL)
    assert run.statuses() == {"a": "skipped", "b": "failed"}
    assert run.closed == [AuctionClosed("a", 1, None, None, is_cancelled=True)]


def test_a_round_that_is_being_awarded_ends_with_a_failure_in_the_same_step() -> None:
    """Two nodes become ready at once; the first gets no bid, the second is never asked for."""
    node = {"capabilityId": "cap.work", "selection": "auction"}
    terms = {name: NodeTerms(None, False, 0, 50, 0) for name in "ab"}
    run = AuctionEngine({"nodes": {"a": node, "b": node}}, {}, terms=terms)
    run.accept()
    assert run.statuses() == {"a": "failed", "b": "skipped"}
    assert [(closed.node, closed.is_cancelled) for closed in run.closed] == [
        ("a", False),
        ("b", True),
    ]


def test_bids_that_come_again_or_late_change_nothing() -> None:
    run = auctioned("a", window_ms=5_000, live={"a": {A: 10}})
    run.hear_bids("a")
    assert not run.machine.step(run.heard[-1]).records
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert not run.machine.step(run.heard[1]).records
    assert run.machine.node("a").auction_round == 2


def test_a_later_round_may_cost_the_whole_reserve_again() -> None:
    """The first award freed what it did not need; an open round keeps it from others."""
    run = auctioned("a", "b", standing={A: 10, B: 90}, hold_micro=200)
    assert won(run) == (A, 90)
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert won(run) == (B, 90)
    run.succeed("a")
    assert won(run) == (A, 90)


# -- the next bid of the same round (money.md, Auctions) -----------------------------------


def decline(run: AuctionEngine, node: str = "a") -> None:
    """The node's agent is full: it has not taken the work."""
    dispatch = run.find(node)
    assert isinstance(dispatch, DispatchNode)
    full = Failure(NodeErrorCode.AGENT_ERROR, "full", is_spared=True, is_declined=True)
    run.hear(AttemptFailed(node, dispatch.attempt, full, run.at_ms, run.at_ms + 5))


def bid_live(count: int = 3, **options: Any) -> AuctionEngine:
    """Return an engine whose round has been awarded to the lowest of so many live bids."""
    bids = {f"did:x:{number}": 10 * (number + 1) for number in range(count)}
    run = auctioned("a", window_ms=5_000, live={"a": bids}, **options)
    run.hear_bids("a")
    return run


def test_a_winner_that_declines_gives_the_award_to_the_next_bid_without_a_window() -> None:
    run = bid_live(standing={B: 25})
    assert won(run) == ("did:x:0", 20)
    run.standing = {C: 21}  # it has read the bids
    decline(run)
    assert won(run) == ("did:x:1", 25)
    assert run.rows["a"].retries_used == 0
    assert run.opened[1].closes_ms == run.opened[1].opened_ms
    decline(run)
    run.run_to_end()
    assert (run.status, run.paid_micro) == ("success", 30)


def test_a_winner_without_its_stake_gives_the_award_to_the_next_bid() -> None:
    run = bid_live(stakes=StakeBook(free={"did:x:1": 2}))
    assert won(run) == ("did:x:1", 30)
    run.succeed("a")
    assert run.paid_micro == 30


def test_a_winner_that_is_away_when_asked_to_go_on_gives_the_award_to_the_next_bid() -> None:
    run = bid_live()
    run.fail("a")
    run.away.add("did:x:0")
    run.wait_retry("a")
    assert won(run) == ("did:x:1", 30)


def test_after_a_failure_of_its_own_or_a_restart_the_next_round_takes_bids() -> None:
    run = bid_live()
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert run.closing["a"].round == 2
    run = bid_live()
    run.crash()
    decline(run)
    assert run.closing["a"].round == 2


def test_so_many_winners_may_decline_then_the_last_is_waited_for() -> None:
    run = bid_live(10)
    for _ in range(AGENTS_REFUSING_MAX):
        decline(run)
    assert len(run.opened) == AGENTS_REFUSING_MAX
    assert run.rows["a"].retry_at_ms is not None
    run.wait_retry("a")
    run.succeed("a")
    assert run.status == "success"


def test_when_no_bid_of_the_round_is_left_bids_are_taken_again() -> None:
    run = bid_live(1)
    decline(run)
    assert run.closing["a"].round == 3
    run.live["a"] = {C: 9}
    run.hear_bids("a")
    assert won(run) == (C, 9)


def test_a_winner_goes_on_with_the_stake_of_its_bid() -> None:
    run = bid_live()
    run.fail("a")
    asked = run.machine.node("a")
    assert (asked.price_micro, asked.bid_micro) == (20, 10)
