"""Finding a capability by words: in the ids, names and descriptions that agents registered."""

from __future__ import annotations

from typing import Final

from ledger.agents.offer_candidates import find_hits, find_words
from ledger.agents.offer_index import OfferIndex
from ledger.reads.reader import LedgerReader

WORDS_MAX: Final = 500


async def find_capabilities(
    reader: LedgerReader, offers: OfferIndex, words: str, *, limit: int, caller: str = ""
) -> list[str]:
    """Return the ids of the capabilities that fit these words, the best first.

    Args:
        offers: brings the index up to date first.
        caller: the DID that searches; callers take turns.

    Raises:
        ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
    """
    await offers.catch_up()
    asked = await find_words(reader, words[:WORDS_MAX], has_fields=False, caller=caller)
    fits: dict[str, float] = {}
    for hit in await find_hits(reader, asked, caller=caller):
        capability_id = hit.row["capability_id"]
        fits[capability_id] = max(fits.get(capability_id, 0.0), hit.fit)
    return sorted(fits, key=lambda one: (-fits[one], one))[:limit]
