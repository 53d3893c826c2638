"""Auctions as the ledger's model knows them: open rounds, live bids, and how each was closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from core.workflow.events import AuctionClosed, AuctionOpened, Record
from ledger.market_commands import EndBidding, PlaceBid

Place = tuple[str, str]


class BadBid(Exception):
    """A bid that is not taken: late, a second one, above the reserve, or for nothing."""


@dataclass(slots=True)
class AuctionModel:
    """`open`: by workflow and node, the round that takes bids; `closed`: every round's end."""

    open: dict[Place, AuctionOpened] = field(default_factory=dict)
    bids: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = field(default_factory=dict)
    closed: dict[tuple[str, str, int], AuctionClosed] = field(default_factory=dict)

    def store(self, workflow_id: str, records: Sequence[Record]) -> None:
        """Open and close the rounds of a step."""
        for record in records:
            if isinstance(record, AuctionOpened):
                assert (workflow_id, record.node) not in self.open, record
                self.open[workflow_id, record.node] = record
                self.bids[workflow_id, record.node, record.round] = {}
            elif isinstance(record, AuctionClosed):
                opened = self.open.pop((workflow_id, record.node))
                assert opened.round == record.round, (opened, record)
                self.closed[workflow_id, record.node, record.round] = record

    def place(self, command: PlaceBid, now_ms: int) -> dict[str, Any]:
        """Take a bid."""
        opened = self.open.get((command.workflow_id, command.node))
        if opened is None or opened.round != command.round or now_ms >= opened.closes_ms:
            raise BadBid("late")
        bids = self.bids[command.workflow_id, command.node, command.round]
        if command.agent_did in bids or command.amount_micro > opened.reserve_micro:
            raise BadBid("a second one, or above the reserve")
        bids[command.agent_did] = {
            "agentDid": command.agent_did,
            "amountMicro": command.amount_micro,
            "etaMs": command.eta_ms,
            "stakeOfferedMicro": command.stake_offered_micro,
            "receivedMs": now_ms,
        }
        return {"receivedMs": now_ms}

    def end_bidding(self, command: EndBidding) -> dict[str, Any]:
        """Tell the bids of a round."""
        opened = self.open.get((command.workflow_id, command.node))
        if opened is None or opened.round != command.round:
            raise BadBid("no such round")
        bids = self.bids[command.workflow_id, command.node, command.round]
        return {"bids": list(bids.values())}
