"""Auctions as the ledger's model knows them: open rounds, live bids, and how each was closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import ErrorCode
from core.workflow.events import AuctionClosed, AuctionOpened, Record
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.auctions import EndBidding, PlaceBid

Place = tuple[str, str]


class BadBid(Exception):
    """A bid that is not taken, or a question that comes too early; nothing of it is stored."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(code, detail)
        self.outcome = Outcome(OutcomeStatus.REJECTED, {}, code, detail)


@dataclass(slots=True)
class AuctionModel:
    """`open`: by workflow and node, the round that takes bids; `told`: those of them whose bids the
    owner has heard; `closed`: every round's end; `locked`: by round and agent, what its live bid
    has locked, micro-credits."""

    open: dict[Place, AuctionOpened] = field(default_factory=dict)
    told: set[Place] = field(default_factory=set)
    bids: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = field(default_factory=dict)
    closed: dict[tuple[str, str, int], AuctionClosed] = field(default_factory=dict)
    locked: dict[tuple[str, str, int, str], int] = field(default_factory=dict)

    def store(self, workflow_id: str, records: Sequence[Record]) -> list[tuple[str, int]]:
        """Open and close the rounds of a step; return what their bids had locked, negative."""
        freed: list[tuple[str, int]] = []
        for record in records:
            if isinstance(record, AuctionOpened):
                assert (workflow_id, record.node) not in self.open, record
                self.open[workflow_id, record.node] = record
                self.told.discard((workflow_id, record.node))
                self.bids[workflow_id, record.node, record.round] = {}
            elif isinstance(record, AuctionClosed):
                opened = self.open.pop((workflow_id, record.node))
                assert opened.round == record.round, (opened, record)
                place = (workflow_id, record.node, record.round)
                self.closed[place] = record
                bids = self.bids[place]
                freed += [(did, -self.locked.pop((*place, did), 0)) for did in bids]
                for bid in record.bids:  # those of an earlier round, among which the award goes on
                    if not bid.is_standing:
                        bids.setdefault(bid.agent_did, {"amountMicro": bid.amount_micro})
        return freed

    def lock(self, command: PlaceBid, balances: Mapping[str, int]) -> tuple[str, int]:
        """Return what a bid locks that was taken: the most that it may require, as far as free."""
        did, amount = command.agent_did, command.amount_micro
        opened = self._round(command)
        free = balances.get(f"stake:{did}", 0)
        offered = free if command.stake_offered_micro is None else command.stake_offered_micro
        micro = min(amount, -(-3 * amount * opened.stake_bps // 20_000), free, offered)
        place = (command.workflow_id, command.node, command.round)
        if micro:
            self.locked[(*place, did)] = micro
            self.bids[place][did]["stakeLockedMicro"] = micro
        return did, micro

    def place(self, command: PlaceBid, now_ms: int) -> dict[str, Any]:
        """Take a bid: in time, the agent's first, and not above the reserve, in this order."""
        opened = self._round(command)
        place = (command.workflow_id, command.node)
        if now_ms >= opened.closes_ms or place in self.told:
            raise BadBid(ErrorCode.CONFLICT, "late")
        bids = self.bids[*place, command.round]
        if command.agent_did in bids:
            raise BadBid(ErrorCode.CONFLICT, "a second one")
        if not 0 <= command.amount_micro <= opened.reserve_micro:
            raise BadBid(ErrorCode.INVALID_REQUEST, "above the reserve")
        bids[command.agent_did] = {
            "agentDid": command.agent_did,
            "amountMicro": command.amount_micro,
            "etaMs": command.eta_ms,
            "stakeOfferedMicro": command.stake_offered_micro,
            "receivedMs": now_ms,
        }
        return {"receivedMs": now_ms}

    def end_bidding(self, command: EndBidding, now_ms: int) -> dict[str, Any]:
        """Tell the bids of a round; none is taken afterwards."""
        if now_ms < self._round(command).closes_ms:
            raise BadBid(ErrorCode.OVERLOADED, "still open")
        self.told.add((command.workflow_id, command.node))
        bids = self.bids[command.workflow_id, command.node, command.round]
        order = sorted(bids.values(), key=lambda bid: (bid["receivedMs"], bid["agentDid"]))
        return {"bids": order}

    def _round(self, command: PlaceBid | EndBidding) -> AuctionOpened:
        opened = self.open.get((command.workflow_id, command.node))
        if opened is None or opened.round != command.round:
            raise BadBid(ErrorCode.CONFLICT, "no such round is open")
        return opened
