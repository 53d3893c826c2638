"""Agents found by words, fields, versions, owner: what is looked at and ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
import psycopg
import pytest

from core.errors import ErrorCode, ServiceError
from ledger.features import discovery as discovery_reads
from ledger.features import offers as offer_candidates
from ledger.features.agents import RegisterAgent
from ledger.features.discovery import AgentSearch, find_capabilities, find_offers
from ledger.features.offers import HITS_MAX, OfferIndex
from ledger.reads.reader import LedgerReader
from ledger.reads.search_reads import SearchReads
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import AT, PAYER, card, leave, revoke


def offering(did: str, capability_id: str, owner: str = PAYER, **said: Any) -> RegisterAgent:
    """Register an agent with one capability."""
    body = {"did": did, "capabilities": [{"id": capability_id, **said}]}
    text = orjson.dumps(body).decode()
    return card(did, owner_did=owner, card_json=text, capability_ids=(capability_id,))


def schema(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


async def find(reader: LedgerReader, limit: int = 20, **asked: Any) -> list[Mapping[str, Any]]:
    found = await find_offers(
        reader, AgentSearch(**asked), limit=limit, slowest_ms=10_000, caller="did:test:caller"
    )
    return list(found)


async def dids(reader: LedgerReader, **asked: Any) -> list[str]:
    return [row["did"] for row in await find(reader, **asked)]


async def test_names_of_schema_fields_are_words_that_rank_last(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    inner = {"address": {"type": "array", "items": schema("postal_code")}}
    takes = {"type": "object", "properties": {**schema("customerEmail")["properties"], **inner}}
    await store.commit(
        [
            offering("did:t:1", "cap.a.v1", inputSchema=takes, outputSchema=schema("zebraCount")),
            offering("did:t:2", "cap.b.v1", description="Writes an email"),
            offering("did:t:3", "cap.c.v1", inputSchema={"properties": 7}, outputSchema="email"),
        ],
        AT,
    )
    await offers.catch_up()
    assert await dids(reader, words="emails") == ["did:t:2", "did:t:1"]
    for words in ("customeremail", "Postal codes", "zebra", "address"):
        (row,) = await find(reader, words=words)
        assert (row["did"], row["said"]) == ("did:t:1", None), words
        assert row["fields"], words
    (row,) = await find(reader, words="cap postal", capability_id="cap.a.v1")
    assert (row["said"], row["fields"]) == (["cap"], ["postal"])
    assert await find_capabilities(reader, offers, "postal email", limit=9) == ["cap.b.v1"]


async def test_versions_are_compared(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    await store.commit(
        [
            offering("did:t:1", "cap.a.v1", version="1.2.0"),
            offering("did:t:2", "cap.a.v1", version="2.0.0"),
            offering("did:t:3", "cap.a.v1"),
            offering("did:t:4", "cap.a.v1", version="1.3.0", description="large " * 2_000),
            offering("did:t:5", "cap.a.v11", version="1.2.0"),
        ],
        AT,
    )
    await offers.catch_up()
    asked = {"capability_id": "cap.a.v1", "versions": ("1.2.0", "1.3.0")}
    assert await dids(reader, **asked) == ["did:t:1", "did:t:4"]
    assert await dids(reader, **asked, words="a", owner_did=PAYER) == []
    assert await dids(reader, capability_id="cap.a.v1", versions=()) == []
    assert len(await dids(reader, capability_id="cap.a.v1")) == 4
    assert len(await dids(reader, capability_id="cap.a.v1", is_prefix=True)) == 5


async def test_very_many_offers_of_one_owner_hide_none_of_another(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    """The offers that matched were ranked in the order in which they were stored, so many."""
    crowd = [
        offering(f"did:t:{n:04}", "cap.a.v1", owner="did:t:crowd", description="Counts sheep")
        for n in range(HITS_MAX + 20)
    ]
    for first in range(0, len(crowd), 100):
        await store.commit(crowd[first : first + 100], AT)
    others = [offering(f"did:t:z{n}", f"cap.z{n}.v1", description="Other") for n in range(9)]
    late = offering("did:t:zz", "cap.a.v1", description="Counts sheep and elephants")
    await store.commit([*others, late], AT + 1)
    while await offers.index_some():
        pass
    by_id = {"capability_id": "cap.a.v1"}
    beginning = {"capability_id": "cap.", "is_prefix": True}
    for asked in ({"words": "sheep"}, by_id, beginning, {**beginning, "words": "sheep"}):
        found = await dids(reader, **asked, limit=1_000)
        assert ("did:t:zz" in found, len(found)) == (True, HITS_MAX), asked
    for asked in ({}, by_id, beginning, {"owner_did": PAYER}):
        assert await dids(reader, **asked, words="elephants") == ["did:t:zz"], asked
        assert (await dids(reader, **asked, words="count elephants"))[0] == "did:t:zz"
    assert await dids(reader, words="elephants", owner_did="did:t:crowd") == []
    assert len(await dids(reader, owner_did="did:t:crowd", limit=1_000)) == HITS_MAX


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], None]]:
    """Sets bounds of the statements, for this test alone."""

    def set_bound(name: str, value: int) -> None:
        for module in (discovery_reads, offer_candidates):
            monkeypatch.setattr(module, name, value, raising=False)

    return set_bound


async def test_a_rare_word_is_found_beyond_what_is_looked_at(
    store: LedgerStore,
    reader: LedgerReader,
    offers: OfferIndex,
    bound: Callable[[str, int], None],
) -> None:
    bound("WALKED_MAX", 4)
    bound("RARE_MAX", 2)
    agents = [offering(f"did:t:{n}", f"cap.n{n}.v1", description="Counts sheep") for n in range(9)]
    await store.commit([*agents, offering("did:t:z", "cap.z.v1", description="elephants")], AT)
    await offers.catch_up()
    assert await dids(reader, words="elephants") == ["did:t:z"]
    assert (await dids(reader, words="sheep elephants"))[0] == "did:t:z"
    assert len(await dids(reader, words="sheep elephants")) == 5


async def test_the_many_ids_of_one_owner_hide_none_of_another_of_the_same_beginning(
    store: LedgerStore,
    reader: LedgerReader,
    offers: OfferIndex,
    bound: Callable[[str, int], None],
) -> None:
    """Its ids came first, and only so many were looked at."""
    bound("WALKED_MAX", 8)
    bound("HITS_MAX", 12)
    crowd = [offering(f"did:t:{n:02}", f"cap.a{n:02}.v1", owner="did:t:crowd") for n in range(20)]
    other = offering("did:t:z", "cap.z.v1")
    await store.commit([*crowd, other, offering("did:t:zz", "cup.z.v1", owner="did:t:cup")], AT)
    await offers.catch_up()
    found = await dids(reader, capability_id="cap.", is_prefix=True)
    assert (len(found), found.count("did:t:z")) == (len(set(found)), 1)
    assert "did:t:00" in found
    assert "did:t:zz" not in found
    assert len(await dids(reader, capability_id="cap.a0", is_prefix=True)) >= 4
    for limited in ("cap.z", "cap.z.v1", "cu"):
        assert len(await dids(reader, capability_id=limited, is_prefix=True)) == 1


async def test_who_left_or_is_revoked_or_has_changed_is_not_found(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    agents = [offering(f"did:t:{n}", "cap.a.v1", description="Paints") for n in range(4)]
    await store.commit(agents, AT)
    await offers.catch_up()
    assert len(await dids(reader, words="paints")) == 4
    changed = offering("did:t:1", "cap.a.v1", description="Draws")
    await store.commit([leave("did:t:0"), changed, revoke("did:t:2")], AT + 1)
    for asked in ({"words": "paints"}, {"capability_id": "cap.a.v1"}, {"owner_did": PAYER}):
        assert await dids(reader, **asked) == ["did:t:3"], asked
    await offers.catch_up()
    assert await dids(reader, words="draws") == ["did:t:1"]


async def test_odd_words_find_nothing_and_harm_nothing(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    await store.commit([offering("did:t:1", "cap.a.v1", description="It's Bob\\'s & co")], AT)
    await offers.catch_up()
    for words in ("", "the of", "& | ! :* ( '", "'", "\\", "\x00", "x" * 5_000, "a' | 'b"):
        assert await dids(reader, words=words) == []
    for words in ("Bob's", "bob & 'co'", "co\\", "x " * 40 + "co"):
        assert await dids(reader, words=words) == ["did:t:1"], words


async def test_a_search_that_takes_too_long_is_ended(
    database: Database, store: LedgerStore, reader: LedgerReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchReads, "search_timeout_ms", 50)
    short = SearchReads(database.service_url, timeout_s=5)
    before, reader.searches = reader.searches, short
    with psycopg.connect(database.superuser_url) as connection:
        connection.execute("LOCK TABLE callboard.offer, callboard.offer_word")
        with pytest.raises(ServiceError) as refused:
            await dids(reader, words="x")
    assert refused.value.code is ErrorCode.OVERLOADED
    assert await dids(reader, words="x") == []
    await short.close()
    reader.searches = before


async def test_agents_of_many_new_owners_hide_no_older_agent_with_the_same_words(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    """180 keys that one tenant had made hid another's agent from all searches by its words."""
    await store.commit([offering("did:t:z", "cap.wine.v1", description="oenology")], AT)
    await offers.catch_up()
    many = [f"did:a:{number:03}" for number in range(HITS_MAX + 30)]
    junk = [offering(did, "cap.a.v1", owner=did, description="oenology") for did in many]
    await store.commit(junk, AT)
    await offers.catch_up()
    assert "did:t:z" in await dids(reader, words="oenology", limit=HITS_MAX)
    assert "cap.wine.v1" in await find_capabilities(reader, offers, "oenology", limit=9)
