"""The lineage of cards at the one writer: a chain per agent, a place per card that changes.

Decision registry-and-discovery.
"""

from __future__ import annotations

import psycopg
import pytest

from core.canonical import hash_bytes, hash_text
from core.records.statuses import OwnershipProof
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import AGENT, AT, NextWriter, card, errors, leave

PLACES = "SELECT string_agg(number || ':' || card_version, ' ' ORDER BY number) FROM agent_card"


async def test_a_card_that_changes_has_the_next_place(
    next_writer: NextWriter, database: Database, auditor: Auditor
) -> None:
    """In one batch, across batches, and after the writer has begun anew."""
    store = await next_writer()
    first, second = card(card_json='{"a":1}'), card(card_json='{"a":2}', card_version=2)
    assert await errors(store, first, card(card_json='{"a":1}'), second) == [None] * 3
    assert auditor.one(PLACES) == "1:1 2:2"
    store = await next_writer()
    again = [card(card_json='{"a":2}', card_version=2) for _ in range(3)]
    await store.commit([again[0], leave(), again[1], again[2]], AT)
    assert auditor.one(PLACES) == "1:1 2:2 3:2"
    with connect(database.superuser_url) as connection:
        query = "SELECT number, card_hash, previous_hash, hash FROM callboard.agent_card"
        rows = connection.execute(f"{query} ORDER BY number").fetchall()
        stored = connection.execute("SELECT card_hash, lineage_hash FROM callboard.agent")
        assert stored.fetchone() == (rows[-1][1], rows[-1][3])
    before = None
    for number, card_hash, previous_hash, own_hash in rows:
        assert card_hash == hash_bytes(b'{"a":1}' if number == 1 else b'{"a":2}')
        assert previous_hash == before
        place = {"cardHash": card_hash, "did": AGENT, "number": number, "previousHash": before}
        assert own_hash == hash_text(place)
        before = own_hash


async def test_a_lineage_goes_on_where_a_claim_yields(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    by_proof: dict[str, object] = {
        "owner_did": "did:test:owner",
        "proof": OwnershipProof.SIGNATURE,
        "lines_taken": (),
    }
    same, other = card(**by_proof), card(card_json='{"a":2}', card_version=2, **by_proof)
    assert await errors(empty_store, card(), same, other) == [None] * 3
    assert auditor.one(PLACES) == "1:1 2:2"


async def test_a_place_never_changes_and_never_goes(
    next_writer: NextWriter, database: Database
) -> None:
    store = await next_writer()
    await store.commit([card()], AT)
    for change in (
        "UPDATE callboard.agent_card SET number = 2",
        "TRUNCATE callboard.agent_card",
    ):
        with (
            connect(database.superuser_url) as connection,
            pytest.raises(psycopg.Error, match="append-only"),
        ):
            connection.execute(change)
