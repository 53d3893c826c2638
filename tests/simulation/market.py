"""The market of a simulated world: what agents have at stake, what they bid, and what must hold.

Without stakes and auctions it does nothing, so that worlds without them run as they always have.
Spec: Settlement rules 7 and 8; money.md cases 20 to 29.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from core.workflow.events import AuctionClosed, AuctionOpened
from ledger.commands import AdvanceWorkflow, Command, PublishWorkflow
from ledger.market_commands import PlaceBid, bid_key
from tests.simulation.ledger_model import LedgerModel, Row
from tests.simulation.money import stake_rows
from tests.simulation.shapes import CENT_MICRO

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOK_MS = 500


class Market:
    """Stakes and bids of one world.

    Args:
        stake_bps: the stake that nodes ask of agents, basis points.
        has_auctions: whether agents bid, in their cards and live.
    """

    def __init__(self, world: World, stake_bps: int, *, has_auctions: bool) -> None:
        self.stake_bps = stake_bps
        self.has_auctions = has_auctions
        self._world = world
        self._chance = random.Random(f"market {world.seed}")
        self._is_look_due = False
        self._seen: set[tuple[str, str, int]] = set()

    def rows(self, rows: Sequence[Row]) -> dict[str, Row]:
        """Return agents' rows by DID, with standing bids where there are auctions."""
        return {row["did"]: self._with_bids(row) if self.has_auctions else row for row in rows}

    def moved(self, batch: Sequence[Command]) -> None:
        """Hear of a commit: owners look at stakes later, agents bid in rounds that opened."""
        if not self.stake_bps:
            return
        if not self._is_look_due:
            self._is_look_due = True
            self._world.clock.call_in(LOOK_MS, self._look)
        for command in batch if self.has_auctions else ():
            if isinstance(command, PublishWorkflow | AdvanceWorkflow):
                for record in command.records:
                    if isinstance(record, AuctionOpened):
                        self._bid(command.workflow_id, record)

    def _look(self) -> None:
        self._is_look_due = False
        rows = stake_rows(self._world.model, self._world.rows)
        for process in self._world.processes.values():
            process.directory.stakes.know(rows)

    def _with_bids(self, row: Row) -> Row:
        card = orjson.loads(row["card"])
        for capability in card["capabilities"]:
            if self._chance.random() < 0.6:
                micro = capability["price_cents"] * CENT_MICRO * self._chance.randint(3, 11) // 10
                capability["standingBid"] = {"bidAmount": micro / 1_000_000}
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
        return "nobody has won, although there are bids" if counted else None
    if closed.winner_did in excluded or amounts[closed.winner_did] != counted[0]:
        return "not the lowest has won"
    return None if closed.price_micro == (counted[:2][-1]) else "not the second-lowest is paid"


def price_paid(model: LedgerModel, workflow_id: str, name: str, node: dict[str, Any]) -> Any:
    """Return who has won an auctioned node's last round, and what it is to be paid."""
    closed = model.auctions.closed[workflow_id, name, node["auction_round"]]
    return closed.winner_did, closed.price_micro
