"""An engine whose nodes are auctioned: bids, rounds, and what may never be of them.

Bids are judged by the real rules; what is asserted is that rounds open and close in turn, one at a
time, and that an attempt is paid what its round or its holder says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from core.errors import NodeErrorCode
from core.market.auction import Bid, award_auction, merge_bids
from core.workflow.actions import Action, CloseAuction, Decision, SelectBidder
from core.workflow.events import (
    AgentNotSelected,
    AgentSelected,
    AuctionClosed,
    AuctionOpened,
    BidsReceived,
    Event,
    Failure,
    Record,
    Verdict,
)
from core.workflow.terms import NodeTerms
from tests.core.workflow.engine import Engine, Selection


@dataclass
class AuctionEngine(Engine):
    """`standing`: bids of cards by DID; `away`: who cannot be reached."""

    standing: dict[str, int] = field(default_factory=dict)
    live: dict[str, dict[str, int]] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.opened: list[AuctionOpened] = []
        self.closed: list[AuctionClosed] = []
        self.closing: dict[str, CloseAuction] = {}

    def hear_bids(self, node: str) -> Decision:
        """Let the window of the node's round pass; the ledger tells the live bids."""
        action = self.closing.pop(node)
        self.at_ms = max(self.at_ms, action.due_ms)
        bids = tuple(
            Bid(did, micro, None, None, action.due_ms - 1)
            for did, micro in self.live.get(node, {}).items()
        )
        return self.hear(BidsReceived(node, action.round, bids, self.at_ms))

    def open_rounds(self) -> set[tuple[str, int]]:
        """Return the rounds that have not been closed."""
        done = {(closed.node, closed.round) for closed in self.closed}
        return {(one.node, one.round) for one in self.opened} - done

    def crash(self) -> Decision:
        self.closing.clear()
        return super().crash()

    def _answer(self, action: Selection) -> Event:
        if not isinstance(action, SelectBidder):
            return super()._answer(action)
        if action.holder_did is not None:
            return self._ask_holder(action, action.holder_did)
        bids = merge_bids(
            [
                Bid(did, micro, None, None, 0)
                for did, micro in self.standing.items()
                if not action.is_frozen
            ],
            action.bids,
        )
        won = award_auction(
            [bid for bid in bids if bid.agent_did not in {*action.exclude, *self.away}],
            reserve_micro=action.reserve_micro,
        )
        if won is None:
            closed = AuctionClosed(action.node, action.round, None, None, tuple(bids))
            is_temporary = any(bid.agent_did in self.away for bid in bids)
            failure = Failure(
                NodeErrorCode.NO_CANDIDATE, "no bids", Verdict.FINAL, is_temporary=is_temporary
            )
            return AgentNotSelected(action.node, failure, self.at_ms, closed)
        closed = AuctionClosed(
            action.node, action.round, won.agent_did, won.price_micro, tuple(bids)
        )
        return self._won(action, won.agent_did, won.price_micro, closed)

    def _ask_holder(self, action: SelectBidder, did: str) -> Event:
        if did in self.away:
            failure = Failure(NodeErrorCode.AGENT_UNAVAILABLE, "away", Verdict.RETRYABLE)
            return AgentNotSelected(action.node, failure, self.at_ms)
        return self._won(action, did, action.holder_price_micro, None)

    def _won(
        self, action: SelectBidder, did: str, price_micro: int, closed: AuctionClosed | None
    ) -> Event:
        return AgentSelected(
            action.node,
            did,
            price_micro,
            self.at_ms,
            stake_micro=self.stakes.stake_micro,
            closed=closed,
        )

    def _commit(self, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, AuctionOpened):
                assert not any(node == record.node for node, _ in self.open_rounds()), record
                rounds = [one.round for one in self.opened if one.node == record.node]
                assert record.round == len(rounds) + 1, (record, rounds)
                self.opened.append(record)
            elif isinstance(record, AuctionClosed):
                assert (record.node, record.round) in self.open_rounds(), record
                self.closed.append(record)
        super()._commit(records)
        # What is open is what rows wait for, and nothing is left when the workflow has ended.
        waiting = {
            (name, row.auction_round)
            for name, row in self.rows.items()
            if row.auction_closes_ms is not None
        }
        assert self.open_rounds() == waiting
        assert not (waiting and self.machine.is_finished)

    def _perform(self, action: Action) -> None:
        if isinstance(action, CloseAuction):
            self.open = [other for other in self.open if other.node != action.node]
            self.closing[action.node] = action
        else:
            super()._perform(action)


def auctioned(
    *names: str, reserve_micro: int = 100, window_ms: int = 0, **options: Any
) -> AuctionEngine:
    """Return an accepted chain of auctioned nodes."""
    node_options = options.pop("node", {})
    nodes: dict[str, Any] = {}
    for position, name in enumerate(names):
        nodes[name] = {
            "capabilityId": "cap.work",
            "selection": "auction",
            "auctionWindowMs": window_ms,
            "dependsOn": [names[position - 1]] if position else [],
            **node_options,
        }
    terms = {name: NodeTerms(None, False, 0, reserve_micro, 1_000) for name in names}
    run = AuctionEngine(
        {"nodes": nodes},
        {},
        reserved=dict.fromkeys(names, reserve_micro),
        terms=terms,
        **options,
    )
    run.accept()
    return run
