"""Rules of auctions: rounds are opened, bid in, told and awarded, at the second-lowest price.

The rules award as a node's owner does, by `core/market/auction.py`; who wins and at what price is
worked out again here, from the bids that the model has taken. Rules: money.md (Auctions, Stakes).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from core.errors import ErrorCode
from core.market.auction import AuctionTerms, Award, Bid, award_auction, find_exclusion, merge_bids
from core.market.reputation import NEUTRAL, Tally, score, stake_required_micro
from core.workflow.events import AuctionClosed, AuctionOpened, NodeChanged
from core.workflow.transitions import NodeStatus
from ledger.commands import OutcomeStatus
from ledger.features.auctions import (
    EndBidding,
    PlaceBid,
    bid_key,
    bids_key,
)
from tests.ledger.machine.base import any_index, asking, few, share_of
from tests.ledger.machine.model import BPS, COUNTED, Round, Work
from tests.ledger.machine.work import Attempt, WorkRules
from tests.ledger.making import Flow

LATENCY_MS_MAX = 1_000
# Who, percent of the reserve, who asks for it, percent of the free stake that is offered.
BidDrawn = tuple[int, int, str, int | None]
bids = st.tuples(
    few, st.integers(0, 105), asking, st.one_of(st.none(), st.none(), st.integers(0, 100))
)


class AuctionRules(WorkRules):
    """Nodes whose agent bids for them."""

    @precondition(lambda self: self.flows)
    @rule(
        index=any_index,
        share=st.integers(0, 60),
        stake_bps=st.sampled_from([0, 1, 2_000]),
        window_ms=st.sampled_from([1_000, 20_000, 20_000, 0]),
        is_new=st.booleans(),
        first=st.lists(bids, max_size=3),
    )
    def open_round(
        self,
        index: int,
        share: int,
        stake_bps: int,
        window_ms: int,
        is_new: bool,
        first: list[BidDrawn],
    ) -> None:
        """A first round, or the next one without those that failed; and some bids."""
        again = [pair for pair in self.works(at_work=False) if pair[1].tried]
        if again and not is_new:
            flow, work = again[index % len(again)]
            work.agent = ""
        else:
            flow, work = self.flow(index), self.new_work()
        reserve = share_of(self.contract(flow).unreserved, share)
        work.rounds += 1
        closes_ms = self.now + window_ms
        opened = AuctionOpened(
            work.name, work.rounds, "cap.test", reserve, stake_bps, self.now, closes_ms
        )
        row = NodeChanged(
            work.name,
            NodeStatus.READY,
            attempt=work.attempt,
            agent_did=work.agent or None,
            auction_round=work.rounds,
            auction_closes_ms=closes_ms,
        )
        self.applies(flow.advance(opened, row))
        work.round = Round(work.rounds, reserve, stake_bps, closes_ms)
        self.contract(flow).works[work.name] = work
        for drawn in first:
            self.bids_for(flow, work, *drawn)

    @precondition(lambda self: self.rounds(told=False) or self.rounds(told=True))
    @rule(index=any_index, drawn=bids, is_told=st.sampled_from([False, False, False, True]))
    def bid(self, index: int, drawn: BidDrawn, is_told: bool) -> None:
        """A bid comes, perhaps too late."""
        pairs = self.rounds(told=is_told) or self.rounds(told=not is_told)
        self.bids_for(*pairs[index % len(pairs)], *drawn)

    def bids_for(
        self, flow: Flow, work: Work, agent: int, share: int, asking: str, offer: int | None
    ) -> None:
        """Bid a share (percent) of the reserve; only an agent's first good bid is taken."""
        did, round_ = self.agents[agent], _round_of(work)
        actor = self.actor(did, asking)
        amount = share_of(round_.reserve, share)
        offered = offer if offer is None else self.model.stakes.get(did, 0) * offer // 100
        command = PlaceBid(
            key=bid_key(flow.id, work.name, round_.number, did),
            request_hash=f"{amount}:{offered}".encode(),
            actor_did=actor,
            is_admin=False,
            agent_did=did,
            workflow_id=flow.id,
            node=work.name,
            round=round_.number,
            amount_micro=amount,
            eta_ms=None,
            stake_offered_micro=offered,
        )
        outcome = self.one(command)
        if did not in round_.bids:
            assert outcome.error is self.bid_error(did, actor, amount, round_)
            if outcome.error is None:
                round_.bids[did] = (amount, offered)
                self.model.lock_bid(round_, did)
            return
        # Its key is taken: by this very bid, or by another one.
        is_same = round_.bids[did] == (amount, offered)
        assert outcome.error is (None if is_same else ErrorCode.KEY_REUSED)
        assert outcome.status is not OutcomeStatus.APPLIED
        other = self.one(replace(command, key=f"another:{command.key}"))
        assert other.error is self.bid_error(did, actor, amount, round_)

    def bid_error(self, did: str, actor: str, amount: int, round_: Round) -> ErrorCode | None:
        if not self.active[did]:
            return ErrorCode.NOT_FOUND
        if actor not in (did, self.owner_of(did)):
            return ErrorCode.FORBIDDEN
        if round_.is_told or self.now >= round_.closes_ms or did in round_.bids:
            return ErrorCode.CONFLICT
        return ErrorCode.INVALID_REQUEST if amount > round_.reserve else None

    @precondition(lambda self: self.rounds(told=False))
    @rule(index=any_index, is_early=st.sampled_from([False, False, True]))
    def hear_bids(self, index: int, is_early: bool) -> None:
        """Ask for a round's bids when it is over; before that they are not told."""
        pairs = self.rounds(told=False)
        flow, work = pairs[index % len(pairs)]
        round_ = _round_of(work)
        command = EndBidding(
            key=bids_key(flow.id, work.name, round_.number),
            member=flow.member,
            shard_epoch=flow.epoch,
            workflow_id=flow.id,
            node=work.name,
            round=round_.number,
        )
        if is_early and self.now + 1 < round_.closes_ms:
            self.refuses(command, ErrorCode.OVERLOADED)
            return
        self.now = max(self.now, round_.closes_ms)
        told = self.applies(command)["bids"]
        found = {bid["agentDid"]: (bid["amountMicro"], bid["stakeOfferedMicro"]) for bid in told}
        assert found == round_.bids
        locked = {bid["agentDid"]: bid.get("stakeLockedMicro", 0) for bid in told}
        assert locked == round_.locked
        round_.is_told = True

    @precondition(lambda self: self.rounds(told=True))
    @rule(
        index=any_index,
        standing=st.lists(st.integers(0, 120), min_size=3, max_size=3),
        risk=st.sampled_from([100, 100, 100, 300]),
    )
    def award(self, index: int, standing: list[int], risk: int) -> None:
        """Award a round to one of its bidders, or of those whose cards bid; or close it without.

        `standing`: by agent, percent of the reserve; below 40 the card does not bid. `risk`:
        percent of the stake that is asked; the owner may not know what is free.
        """
        pairs = self.rounds(told=True)
        flow, work = pairs[index % len(pairs)]
        round_ = _round_of(work)
        bids = self.all_bids(round_, standing)
        out, won = self.judged_round(work, round_, bids)
        second = self.second_price(work, round_, bids)
        assert (None if won is None else won.price_micro) == second
        if won is None:
            closed = AuctionClosed(
                work.name, round_.number, None, None, tuple(bids), tuple(out.items())
            )
            self.applies(flow.advance(closed, self.ended(work, NodeStatus.FAILED, None)))
            self.model.free_bids(round_)
            del self.contract(flow).works[work.name]
            return
        bid = next(bid for bid in bids if bid.agent_did == won.agent_did)
        assert bid.amount_micro == min(self.eligible(work, round_, bids).values())
        required = stake_required_micro(
            bid.amount_micro, stake_bps=round_.stake_bps, score=bid.reputation
        )
        closed = AuctionClosed(
            work.name,
            round_.number,
            won.agent_did,
            won.price_micro,
            tuple(bids),
            tuple(out.items()),
        )
        one = Attempt(work, won.agent_did, won.price_micro, required * risk // 100)
        result = self.applies(flow.advance(closed, *one.records()))
        work.round = None
        self.model.free_bids(round_)
        assert result.get("unstaked", []) == self.begins(flow, one)
        stored = self.auditor.connection.execute(
            "SELECT status, winner_did, price_micro FROM auction"
            " WHERE workflow_id = %s AND node = %s AND round = %s",
            (flow.id, work.name, round_.number),
        ).fetchone()
        assert stored == ("awarded", won.agent_did, second)

    def all_bids(self, round_: Round, standing: list[int]) -> list[Bid]:
        live = [
            Bid(did, amount, None, offered, 0, self.score_of(did))
            for did, (amount, offered) in round_.bids.items()
        ]
        cards = [
            Bid(
                did,
                share_of(round_.reserve, percent),
                None,
                None,
                0,
                self.score_of(did),
                is_standing=True,
            )
            for did, percent in zip(self.agents, standing, strict=True)
            if percent >= 40
        ]
        return merge_bids(cards, live)

    def score_of(self, did: str) -> float:
        tally = self.model.tallies.get(did)
        if tally is None:
            return NEUTRAL
        return score(Tally(*(tally[name] for name in COUNTED)), latency_ms_max=LATENCY_MS_MAX)

    def judged_round(
        self, work: Work, round_: Round, bids: list[Bid]
    ) -> tuple[dict[str, str], Award | None]:
        """Return who is excluded and why, and the award, by the rules that owners follow."""
        terms = AuctionTerms(round_.reserve, round_.closes_ms, round_.stake_bps)
        out: dict[str, str] = {}
        for bid in bids:
            why = find_exclusion(
                bid,
                terms,
                stake_free_micro=self.model.stakes.get(bid.agent_did, 0)
                + round_.locked.get(bid.agent_did, 0),
                is_revoked=not self.active[bid.agent_did],
            )
            if why is not None or bid.agent_did in work.tried:
                out[bid.agent_did] = "failed before" if why is None else why.value
        won = award_auction(
            [bid for bid in bids if bid.agent_did not in out], reserve_micro=round_.reserve
        )
        return out, won

    def eligible(self, work: Work, round_: Round, bids: list[Bid]) -> Mapping[str, int]:
        """Return the amounts that count, by agent, worked out from the texts alone."""
        counted: dict[str, int] = {}
        for bid in bids:
            did = bid.agent_did
            factor = Fraction(3, 2) - Fraction(bid.reputation).limit_denominator(1_000_000)
            asked = Fraction(bid.amount_micro * round_.stake_bps, BPS) * factor
            free = self.model.stakes.get(did, 0) + round_.locked.get(did, 0)
            put_up = free if bid.stake_offered_micro is None else bid.stake_offered_micro
            is_staked = min(free, put_up) >= asked
            is_here = self.active[did] and did not in work.tried
            if is_here and is_staked and bid.amount_micro <= round_.reserve:
                counted[did] = bid.amount_micro
        return counted

    def second_price(self, work: Work, round_: Round, bids: list[Bid]) -> int | None:
        """Return what the winner is paid (case 20), None when no agent wins."""
        amounts = sorted(self.eligible(work, round_, bids).values())
        return None if not amounts else amounts[min(1, len(amounts) - 1)]


def _round_of(work: Work) -> Round:
    assert work.round is not None, work
    return work.round
