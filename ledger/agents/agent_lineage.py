"""The lineage of an agent's cards: each has the hash of the one before, so none can be taken out.

`hash` = SHA-256 over the canonical form of `{cardHash, did, number, previousHash}`, `cardHash` that
over the card as it is stored, without its standing bids: their few digits would be found by trying.
What is kept of a card that was replaced is its hash: who has kept
the card can show that it was the agent's. Reference: features.md (Agent cards, Registration).
Decision registry-and-discovery.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from core.canonical import hash_bytes, hash_text
from ledger.agents.agent_commands import RegisterAgent
from ledger.tables.market_tables import AGENT_CARDS
from ledger.writer.batch import Batch
from ledger.writer.state_cache import KnownAgent

# Of what a card says for people: name, author, model.
META_COLUMNS: Final = ("meta_name", "meta_author", "meta_model")


def continue_lineage(
    command: RegisterAgent, known: KnownAgent | None, agent: KnownAgent, batch: Batch
) -> KnownAgent:
    """Return an agent with its card's place in the lineage, and store that place.

    The stored card of an active agent, registered again, stays where it is. A lineage is the DID's:
    it goes on under another owner.
    """
    card_hash = command.card_hash or hash_bytes(command.card_json.encode())
    number, previous_hash = 1, None
    if known is not None:
        if known.is_active and known.card_hash == card_hash:
            return replace(
                agent,
                card_number=known.card_number,
                card_hash=card_hash,
                lineage_hash=known.lineage_hash,
            )
        number, previous_hash = known.card_number + 1, known.lineage_hash
    place = {
        "cardHash": card_hash,
        "did": command.did,
        "number": number,
        "previousHash": previous_hash,
    }
    own_hash = hash_text(place)
    batch.store(
        AGENT_CARDS,
        (command.did, number),
        command,
        number=number,
        card_hash=card_hash,
        previous_hash=previous_hash,
        hash=own_hash,
        registered_by_did=command.actor_did,
    )
    return replace(agent, card_number=number, card_hash=card_hash, lineage_hash=own_hash)
