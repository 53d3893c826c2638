"""Nodes whose agent is found by auction: rounds, what they wait for, who goes on after a failure.

Who wins is `core/market/auction.py`'s; here stands when a round begins and ends. A round with a
window leaves the node `ready` until the ledger has told the live bids; one without is awarded
within the step, to a standing bid. The winner keeps the node through its retries, at its price;
after its final failure the next round begins without it.
Spec: Settlement rules 7; money.md cases 20, 24 and 25. Decision 0075.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.errors import NodeErrorCode
from core.market.auction import Bid
from core.workflow.actions import CloseAuction, Decision, SelectBidder
from core.workflow.events import AuctionClosed, AuctionOpened, BidsHeard, Failure
from core.workflow.node_state import Asked, NodeState
from core.workflow.rules.attempts import Progress
from core.workflow.rules.retry import may_change_agent
from core.workflow.terms import NO_TERMS
from core.workflow.transitions import NodeTrigger


class AuctioningProgress(Progress):
    """`Progress` that can have nodes auctioned."""

    def _ask_agent(self, state: NodeState, at_ms: int, decision: Decision) -> None:
        if not state.compiled.is_auction:
            super()._ask_agent(state, at_ms, decision)
        elif state.agent_did is not None and state.agent_did not in state.agents_tried:
            self._ask_holder(state, at_ms, decision)
        else:
            self._open_round(state, at_ms, decision)

    def _ask_holder(self, state: NodeState, at_ms: int, decision: Decision) -> None:
        """Ask whoever has won to go on."""
        action = self._select_bidder(state, at_ms)
        decision.actions.append(
            replace(action, holder_did=state.agent_did, holder_price_micro=state.price_micro)
        )

    def _open_round(self, state: NodeState, at_ms: int, decision: Decision) -> None:
        name = state.compiled.name
        terms = self._terms.get(name, NO_TERMS)
        reserve_micro = self._reserve_micro(state)
        # Nobody else may take what this round can cost, however long it is open.
        kept_micro = reserve_micro + terms.verifier_micro
        kept_micro = min(kept_micro, self._budget.available_micro(name))
        self._budget.reserve(name, max(kept_micro, self._budget.reserved_micro(name)))
        state.auction_round += 1
        state.is_round_open = True
        closes_ms = at_ms + state.compiled.auction_window_ms
        decision.records.append(
            AuctionOpened(
                name,
                state.auction_round,
                state.compiled.capability_id,
                reserve_micro,
                terms.stake_bps,
                at_ms,
                closes_ms,
            )
        )
        if state.compiled.auction_window_ms == 0:
            self._award(state, at_ms, (), decision)
            return
        state.asked = Asked.NOTHING
        state.auction_closes_ms = closes_ms
        decision.records.append(state.row())
        self._await_bids(state, closes_ms, decision)

    def _selection_failed(
        self, state: NodeState, failure: Failure, at_ms: int, decision: Decision
    ) -> None:
        """Let the next round begin without a winner that is away, if it may."""
        holder = state.agent_did
        if (
            state.compiled.is_auction
            and failure.code is NodeErrorCode.AGENT_UNAVAILABLE
            and holder is not None
            and holder not in state.agents_tried
            and may_change_agent(
                len(state.agents_tried) + 1,
                allow_fallback_agents=self.compiled.allow_fallback_agents,
                is_targeted=False,
                allow_broadcast_fallback=False,
            )
        ):
            state.agents_tried += (holder,)
            state.is_stand_in = True
            self._open_round(state, at_ms, decision)
            return
        super()._selection_failed(state, failure, at_ms, decision)

    def _await_bids(self, state: NodeState, closes_ms: int, decision: Decision) -> None:
        decision.actions.append(CloseAuction(state.compiled.name, state.auction_round, closes_ms))

    def _bids_heard(self, event: BidsHeard, decision: Decision) -> None:
        state = self._state_of(event.node)
        closes_ms = state.auction_closes_ms
        if closes_ms is None or state.auction_round != event.round:
            return
        state.auction_closes_ms = None
        self._award(state, closes_ms, event.bids, decision)

    def _award(
        self, state: NodeState, closes_ms: int, bids: tuple[Bid, ...], decision: Decision
    ) -> None:
        action = self._select_bidder(state, closes_ms)
        decision.actions.append(replace(action, bids=bids, exclude=state.agents_tried))

    def _select_bidder(self, state: NodeState, closes_ms: int) -> SelectBidder:
        """Let the node wait for an agent; return what both ways to one ask alike."""
        state.asked = Asked.AGENT
        state.asked_micro = self._price_max_micro(state)
        return SelectBidder(
            state.compiled.name,
            state.compiled.capability_id,
            state.auction_round,
            self._reserve_micro(state),
            self._terms[state.compiled.name].stake_bps,
            closes_ms,
        )

    def _close_auction(
        self, state: NodeState, closed: AuctionClosed | None, decision: Decision
    ) -> None:
        if closed is not None:
            assert closed.round == state.auction_round, (closed, state)
            state.is_round_open = False
            decision.records.append(closed)

    def _reserve_micro(self, state: NodeState) -> int:
        """Return the most that a round pays: what was promised at publish, as far as it is left."""
        terms = self._terms.get(state.compiled.name, NO_TERMS)
        assert terms.reserve_micro is not None, state
        left_micro = max(0, self._price_max_micro(state) - terms.verifier_micro)
        return min(terms.reserve_micro, left_micro)

    def _end_node(
        self,
        state: NodeState,
        trigger: NodeTrigger,
        error: dict[str, Any],
        at_ms: int,
        decision: Decision,
    ) -> None:
        if state.is_round_open:
            # Its bids are awaited, or another node has failed while it was being awarded.
            name = state.compiled.name
            decision.records.append(
                AuctionClosed(name, state.auction_round, None, None, is_cancelled=True)
            )
            state.is_round_open = False
            state.auction_closes_ms = None
        super()._end_node(state, trigger, error, at_ms, decision)
