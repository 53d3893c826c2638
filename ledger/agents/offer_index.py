"""The index of what agents offer, kept outside the writer: its callers have cards parsed.

The writer only notes which agents have changed. A step reads their cards, makes lexemes of them in
a thread (`core/planning/lexemes.py`) and stores these: a bounded number of agents and bytes. A
registration waits until a step has read its own cards, which it reads first. A search for work
calls a step first, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import sqlalchemy as sql

from core.errors import ErrorCode, ServiceError
from core.json_text import read_json
from core.planning.lexemes import offered_lexemes
from ledger.connections.pools import OperationalPool
from ledger.merged_runs import MergedRuns
from ledger.reads.agent_pages import IS_HIDDEN, IS_REVOKED
from ledger.reads.stored import RowDict
from ledger.schema import typed
from ledger.step_rows import StepRows

log = logging.getLogger("callboard.ledger")

# Agents in one step, and bytes of their cards: a fifth of a second of parsing.
ROWS_MAX: Final = 500
# The server ends one that takes longer, and the next one reads half as many agents: what is begun
# again as it was would end as it did. Shorter than a caller waits, so that the work ends as well.
BYTES_MAX: Final = 1024 * 1024
# A search waits for so many transactions at most; what is due then is found by a later one.
STEPS_MAX: Final = 4
# A registration waits so long: when more is due, its offers are found later.
FOLLOWED_MAX_S: Final = 5.0
# Offers of one owner that words find, the earlier registered ones.
OWNER_OFFERS_MAX: Final = 20_000

# A condition of searches on an offer `h`: what has changed since it was read is left out, as it may
# have been taken back; so are agents that are revoked, and those that are hidden from the viewer.
IS_CURRENT: Final = f"""
    NOT EXISTS (SELECT 1 FROM callboard.offer_due d WHERE d.did = h.did)
        AND NOT {IS_REVOKED.format(did="h.did")} AND NOT {IS_HIDDEN.format(did="h.did")}
"""
_DUE: Final = sql.text(
    "SELECT did, seq, card FROM callboard.due_offers(:dids, :rows_max, :bytes_max)"
)
_STORE: Final = sql.text(
    "SELECT callboard.store_offers(:dids, :seqs, :offer_dids, :ids, :versions, :words, :owner_max)"
).bindparams(
    *typed(texts="dids offer_dids ids versions words", bigints="seqs", integer="owner_max")
)


class OfferIndex(OperationalPool):
    """Brings the index up to date, on a connection of its own."""

    name, is_durable = "callboard-offers", False
    # Of one step.
    statement_timeout_ms = 2_000

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._step_rows = StepRows()
        # Agents whose registrations wait for the next run, which reads these first.
        self._awaited: set[str] = set()
        self._reads = MergedRuns("reading changed cards", self._index_next)

    async def close(self) -> None:
        """Close the connection."""
        await self._reads.close()
        await super().close()

    async def catch_up(self) -> None:
        """Read the cards that have changed, up to a bound; those of a slow step are read later.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        for _ in range(STEPS_MAX):
            try:
                if not await self.index_some():
                    return
            except ServiceError as error:
                if error.code is not ErrorCode.OVERLOADED:
                    raise
                log.warning(
                    "reading changed cards takes too long, next rows=%d",
                    self._step_rows.of(ROWS_MAX),
                )
                return

    def follow(self) -> None:
        """Read all cards that have changed, in the background."""
        self._reads.soon()

    async def followed(self, dids: Iterable[str]) -> None:
        """Return when the cards of these agents were read, or after `FOLLOWED_MAX_S`."""
        self._awaited.update(dids)
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOWED_MAX_S):
                await self._reads.done()

    async def _index_next(self) -> None:
        """Read all awaited cards, and some others; have the next ones read if there were any."""
        awaited, self._awaited = self._awaited, set()
        while True:
            try:
                read = await self.index_some(awaited)
            except ServiceError as error:
                # The next step reads half as many.
                if error.code is not ErrorCode.OVERLOADED or self._step_rows.of(ROWS_MAX) == 1:
                    raise
                continue
            if not awaited & read:  # they are read first, so none of them is due
                break
            awaited = awaited - read
        if read:
            self._reads.soon()

    async def index_some(self, awaited: Collection[str] = ()) -> set[str]:
        """Read some cards that have changed; return their agents.

        Args:
            awaited: the cards of these agents are read first.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; OVERLOADED, the step took too long.
        """
        rows_max = self._step_rows.of(ROWS_MAX)
        due = {"dids": list(awaited), "rows_max": rows_max, "bytes_max": BYTES_MAX}
        try:
            rows = await self.rows(_DUE, due)
            if rows:
                stored = await asyncio.to_thread(_build_offers, rows)
                await self.rows(_STORE, {**stored, "owner_max": OWNER_OFFERS_MAX})
        except ServiceError:
            self._step_rows.note_failed(ROWS_MAX)
            raise
        self._step_rows.note_done()
        return {row["did"] for row in rows}


def _build_offers(rows: Sequence[RowDict]) -> dict[str, list[Any]]:
    """Return the arguments of `store_offers` for agents that were read."""
    offers: list[tuple[str, str, str, str]] = []
    for row in rows:
        # An agent that is not active has no card here.
        card = read_json(row["card"] or "{}")
        # A card that is not a card of capabilities is found by nothing.
        said = {one.get("id"): one for one in _capabilities(card)}
        for capability_id, offered in said.items():
            if not isinstance(capability_id, str):
                continue
            version = str(offered.get("version") or "")
            words = offered_lexemes(card, capability_id, offered)
            offers.append((row["did"], capability_id, version, " ".join(words)))
    return {
        "dids": [row["did"] for row in rows],
        "seqs": [row["seq"] for row in rows],
        "offer_dids": [offer[0] for offer in offers],
        "ids": [offer[1] for offer in offers],
        "versions": [offer[2] for offer in offers],
        "words": [offer[3] for offer in offers],
    }


def _capabilities(card: Any) -> list[dict[str, Any]]:
    listed = card.get("capabilities") if isinstance(card, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
