"""The market of a simulated world: what agents have at stake, what they bid and ask per token, and
what must hold.

Without stakes and auctions it does nothing, so that worlds without them run as they always have.
Reference: money.md (Prices, Auctions, Slashing).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson

from core.workflow.events import AuctionClosed, AuctionOpened
from ledger.commands import Command
from ledger.features.auctions import PlaceBid, bid_key
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.money_checks import stake_parts
from tests.simulation.money_model import Row
from tests.simulation.shapes import CENT_MICRO, TOKENS, token_rates

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOK_MS = 500


class Market:
    """Stakes and bids of one world.

    Args:
        stake_bps: the stake that nodes ask of agents, basis points.
        is_whole: whether agents bid, in their cards and live, and have some work paid by tokens.
    """

    def __init__(self, world: World, stake_bps: int, *, is_whole: bool) -> None:
        self.stake_bps = stake_bps
        self.is_whole = is_whole
        self._world = world
        self._chance = random.Random(f"market {world.seed}")
        self._is_look_due = False
        self._seen: set[tuple[str, str, int]] = set()

    def rows(self, rows: Sequence[Row]) -> dict[str, Row]:
        """Return agents' rows by DID, with standing bids and prices by tokens."""
        return {row["did"]: self.row(row) for row in rows}

    def row(self, row: Row) -> Row:
        """Return an agent's row as it is in this world."""
        return self._with_bids(row) if self.is_whole else row

    def moved(self, batch: Sequence[Command]) -> None:
        """Hear of a commit: owners look at stakes later, agents bid in rounds that opened."""
        if not self.stake_bps:
            return
        if not self._is_look_due:
            self._is_look_due = True
            self._world.clock.call_in(LOOK_MS, self._look)
        for command in batch if self.is_whole else ():
            if isinstance(command, PublishWorkflow | AdvanceWorkflow):
                for record in command.records:
                    if isinstance(record, AuctionOpened):
                        self._bid(command.workflow_id, record)

    def _look(self) -> None:
        self._is_look_due = False
        parts = stake_parts(self._world.model, self._world.rows)
        for process in self._world.processes.values():
            process.directory.stakes.apply_parts(parts)

    def _with_bids(self, row: Row) -> Row:
        card = orjson.loads(row["card"])
        for capability in card["capabilities"]:
            if self._chance.random() < 0.6:
                micro = capability["price_cents"] * CENT_MICRO * self._chance.randint(3, 11) // 10
                capability["standingBid"] = {"bidAmount": micro / 1_000_000}
            if capability["id"] == TOKENS:
                del capability["price_cents"]
                rates = dict(zip(("inputRate", "outputRate"), token_rates(row["did"]), strict=True))
                capability["pricing"] = {"model": "per-token", **rates}
        return {**row, "card": orjson.dumps(card).decode()}

    def _bid(self, workflow_id: str, opened: AuctionOpened) -> None:
        place = (workflow_id, opened.node, opened.round)
        window_ms = opened.closes_ms - opened.opened_ms
        if place in self._seen or window_ms == 0:
            return
        self._seen.add(place)
        for did in self._world.rows:
            if self._chance.random() < 0.5:
                micro = opened.reserve_micro * self._chance.randint(1, 12) // 10
                at_ms = opened.opened_ms + self._chance.randint(0, window_ms + window_ms // 5)
                self._world.clock.call_at(at_ms, self._place, place, did, micro)

    def _place(self, place: tuple[str, str, int], did: str, micro: int) -> None:
        command = PlaceBid(
            key=bid_key(*place, did),
            request_hash=b"",
            actor_did=did,
            is_admin=False,
            agent_did=did,
            workflow_id=place[0],
            node=place[1],
            round=place[2],
            amount_micro=micro,
            eta_ms=None,
            stake_offered_micro=None,
        )
        self._world.model.commit([command])


def wrong_auction(model: LedgerModel) -> str | None:
    """Return what is wrong with the auctions of a world that has come to its end."""
    if model.auctions.open:
        return f"rounds are open after the end: {model.auctions.open}"
    for place, closed in model.auctions.closed.items():
        said = {bid.agent_did for bid in closed.bids}
        unheard = set(model.auctions.bids[place]) - said
        if unheard and not closed.is_cancelled:
            return f"bids were taken and not heard in {place}: {unheard}"
        problem = _wrong_award(closed)
        if problem is not None:
            return f"{problem}: {closed}"
    return None


def _wrong_award(closed: AuctionClosed) -> str | None:
    excluded = dict(closed.excluded)
    amounts = {bid.agent_did: bid.amount_micro for bid in closed.bids}
    counted = sorted(micro for did, micro in amounts.items() if did not in excluded)
    if closed.winner_did is None:
        return "no agent has won, although there are bids" if counted else None
    if closed.winner_did in excluded or amounts[closed.winner_did] != counted[0]:
        return "not the lowest has won"
    return None if closed.price_micro == (counted[:2][-1]) else "not the second-lowest is paid"


def award_of(model: LedgerModel, workflow_id: str, name: str) -> tuple[str | None, int | None]:
    """Return who has won an auctioned node last, and what it is to be paid.

    Later rounds in which no agent has won change nothing: a winner that was only away goes on.
    """
    awarded = [
        (place[2], closed.winner_did, closed.price_micro)
        for place, closed in model.auctions.closed.items()
        if place[:2] == (workflow_id, name) and closed.winner_did is not None
    ]
    return max(awarded, default=(0, None, None))[1:]
