"""The auction rounds of a node: their start, award and end.

`core/market/auction.py` decides which bid wins. A round with a window leaves the node `ready` until
the ledger returns the live bids. A round without a window is awarded within the step, to a standing
bid. The winner keeps the node through its retries, at the awarded price. After the winner's final
failure, the next round excludes it.

If the winner cannot be used, the next bid wins at once: a further round is opened and awarded
within the step. It is frozen: only the bids of the last round take part, which are kept in memory.
New bids are not accepted, because the bids of the last round are public by then. If no bid of the
last round can win, or after a restart, the next round takes new bids.
Reference: money.md (Auctions). Decision auctions.
"""

from __future__ import annotations

from msgspec.structs import replace

from core.errors import NodeErrorCode
from core.market.auction import Bid
from core.workflow.actions import CloseAuction, SelectBidder
from core.workflow.events import AuctionClosed, AuctionOpened, BidsReceived, Failure
from core.workflow.rules.payment import price_max_micro
from core.workflow.rules.retry import may_change_agent
from core.workflow.terms import NO_TERMS
from core.workflow.workflow_state import AwaitedSelection, NodeState, WorkflowState, find_node


def ask_bidder(workflow: WorkflowState, state: NodeState) -> None:
    """Select the winner of the last round again; open a round if there is no usable winner."""
    if state.agent_did is not None and state.agent_did not in state.agents_tried:
        action = _select_bidder(workflow, state, workflow.at_ms)
        # After a restart the bid is not known. The price is at least the bid, so it is used.
        bid_micro = state.price_micro if state.bid_micro is None else state.bid_micro
        workflow.perform(
            replace(
                action,
                holder_did=state.agent_did,
                holder_price_micro=state.price_micro,
                holder_bid_micro=bid_micro,
                holder_promised_ms=state.promised_ms,
            )
        )
    else:
        _open_round(workflow, state)


def await_bids(workflow: WorkflowState, state: NodeState, closes_ms: int) -> None:
    """Request the live bids of the open round at the end of its window."""
    workflow.perform(CloseAuction(state.compiled.name, state.auction_round, closes_ms))


def bids_received(workflow: WorkflowState, event: BidsReceived) -> None:
    """Request the award of the round whose window is over; ignore bids of an earlier round."""
    state = find_node(workflow, event.node)
    closes_ms = state.auction_closes_ms
    if closes_ms is None or state.auction_round != event.round:
        return
    state.auction_closes_ms = None
    _request_award(workflow, state, closes_ms, event.bids)


def close_round(workflow: WorkflowState, state: NodeState, closed: AuctionClosed | None) -> None:
    """Record the result of the open round; `closed` is None if the event belongs to no round."""
    if closed is not None:
        assert closed.round == state.auction_round, (closed, state)
        state.is_round_open = False
        for bid in closed.bids:
            if bid.agent_did == closed.winner_did:
                state.bid_micro = bid.amount_micro
                # The stake locks of the bids end with the round.
                state.round_bids = tuple(replace(one, stake_locked_micro=0) for one in closed.bids)
        workflow.record(closed)


def cancel_round(workflow: WorkflowState, state: NodeState) -> None:
    """Cancel the open round of a node that ends, if it has one."""
    if state.is_round_open:
        # The round waits for bids, or another node failed while the award was computed.
        name = state.compiled.name
        workflow.record(AuctionClosed(name, state.auction_round, None, None, is_cancelled=True))
        state.is_round_open = False
        state.auction_closes_ms = None


def may_replace_winner(workflow: WorkflowState, state: NodeState, failure: Failure) -> bool:
    """Say whether a failed selection may be repeated without the last winner.

    This is allowed if the winner is unavailable for the next attempt and the node may change its
    agent.
    """
    winner = state.agent_did
    return (
        state.compiled.is_auction
        and failure.code is NodeErrorCode.AGENT_UNAVAILABLE
        and winner is not None
        and winner not in state.agents_tried
        and may_change_agent(
            len(state.agents_tried) + 1,
            allow_fallback_agents=workflow.compiled.allow_fallback_agents,
            is_targeted=False,
            allow_broadcast_fallback=False,
            is_refused=True,
        )
    )


def replace_winner(workflow: WorkflowState, state: NodeState) -> None:
    """Open a round that excludes the last winner."""
    assert state.agent_did is not None, state
    state.agents_tried += (state.agent_did,)
    state.seeks_replacement = True
    _open_round(workflow, state)


def reopen_round(workflow: WorkflowState, state: NodeState) -> bool:
    """Open a round that takes new bids, after a frozen round in which no bid could win.

    Returns: whether a round was opened.
    """
    if not state.seeks_replacement or state.round_bids is None:
        return False
    state.round_bids = None
    _open_round(workflow, state)
    return True


def _open_round(workflow: WorkflowState, state: NodeState) -> None:
    name = state.compiled.name
    terms = workflow.terms.get(name, NO_TERMS)
    reserve_micro = _reserve_micro(workflow, state)
    # Reserve the highest possible cost of the round while it is open.
    kept_micro = reserve_micro + terms.verifier_micro
    kept_micro = min(kept_micro, workflow.budget.available_micro(name))
    workflow.budget.reserve(name, max(kept_micro, workflow.budget.reserved_micro(name)))
    state.auction_round += 1
    state.is_round_open = True
    is_next_bid = state.seeks_replacement and state.round_bids is not None
    closes_ms = workflow.at_ms if is_next_bid else workflow.at_ms + state.compiled.auction_window_ms
    workflow.record(
        AuctionOpened(
            name,
            state.auction_round,
            state.compiled.capability_id,
            reserve_micro,
            terms.stake_bps,
            workflow.at_ms,
            closes_ms,
        )
    )
    if is_next_bid:
        _request_award(workflow, state, closes_ms, state.round_bids or (), is_frozen=True)
        return
    state.round_bids = None
    if closes_ms == workflow.at_ms:
        _request_award(workflow, state, closes_ms, ())
        return
    state.awaiting = AwaitedSelection.NOTHING
    state.auction_closes_ms = closes_ms
    workflow.record(state.row())
    await_bids(workflow, state, closes_ms)


def _request_award(
    workflow: WorkflowState,
    state: NodeState,
    closes_ms: int,
    bids: tuple[Bid, ...],
    *,
    is_frozen: bool = False,
) -> None:
    action = _select_bidder(workflow, state, closes_ms)
    action = replace(action, bids=bids, exclude=state.agents_tried, is_frozen=is_frozen)
    workflow.perform(action)


def _select_bidder(workflow: WorkflowState, state: NodeState, closes_ms: int) -> SelectBidder:
    """Set the node to await an agent; return the action without bids and `holder_…` fields."""
    state.awaiting = AwaitedSelection.AGENT
    state.price_limit_micro = price_max_micro(workflow, state)
    return SelectBidder(
        state.compiled.name,
        state.compiled.capability_id,
        state.auction_round,
        _reserve_micro(workflow, state),
        workflow.terms[state.compiled.name].stake_bps,
        closes_ms,
        verifier_capability_id=state.compiled.chosen_verifier_capability_id,
        timeout_ms=state.compiled.timeout_ms,
    )


def _reserve_micro(workflow: WorkflowState, state: NodeState) -> int:
    """Return a round's reserve: the reserve at publish, or the node's remaining money if lower."""
    terms = workflow.terms.get(state.compiled.name, NO_TERMS)
    assert terms.reserve_micro is not None, state
    left_micro = max(0, price_max_micro(workflow, state) - terms.verifier_micro)
    return min(terms.reserve_micro, left_micro)
