"""Capabilities found by words, over cards as agents wrote them. Decisions 0083, 0172."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import orjson
import psycopg
import pytest
import sqlalchemy as sql
from msgspec.structs import replace

from core.errors import ServiceError
from ledger.agents import capability_search, offer_index
from ledger.agents.agent_commands import DeregisterAgent, RegisterAgent
from ledger.agents.capability_search import find_capabilities
from ledger.agents.offer_index import STEPS_MAX, OfferIndex
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import rows_read
from tests.ledger.making import AT, PAYER, card, new_key, open_with_member

pytestmark = pytest.mark.anyio

# As callboard.words_bytes has them.
CARD_BYTES_MAX = 8 * 1024
WORDS_BYTES_MAX = 16 * CARD_BYTES_MAX


def offering(
    did: str, capability_id: str, description: str, name: str = "", owner: str = PAYER
) -> RegisterAgent:
    """Register an agent with one capability."""
    body = {
        "did": did,
        "capabilities": [{"id": capability_id, "description": description}],
        "metadata": {"name": name},
    }
    text = orjson.dumps(body).decode()
    return card(did, owner_did=owner, card_json=text, capability_ids=(capability_id,))


async def test_search_prefers_ids_to_names_to_descriptions_and_any_word_is_enough(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    store, _ = await open_with_member(database.service_url)
    await store.commit(
        [
            offering("did:t:1", "cap.text.summarise.v1", "Shortens what it is given"),
            offering("did:t:2", "cap.text.other.v1", "Can summarise, too"),
            offering("did:t:3", "cap.web.fetch.v1", "Reads pages", "Summarising Inc."),
            offering("did:t:4", "cap.image.resize.v1", "Makes pictures smaller"),
        ],
        AT,
    )

    async def found(words: str, limit: int = 9) -> list[str]:
        return await find_capabilities(reader, offers, words, limit=limit)

    order = ["cap.text.summarise.v1", "cap.web.fetch.v1", "cap.text.other.v1"]
    assert await found("please summarise this") == order
    assert await found("shorten, read a page?", 1) == ["cap.web.fetch.v1"], "two words beat one"
    assert await found("smaller picture") == ["cap.image.resize.v1"]
    for nothing in ("", "the and of", "zebra", "& | ! :* ( '", "\x00", "x" * 5_000):
        assert await found(nothing) == []
    await store.close()


async def test_search_passes_over_agents_that_left_and_cards_it_cannot_read(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    store, _ = await open_with_member(database.service_url)
    odd = '{"did":"did:t:9","capabilities":%s}'
    left = DeregisterAgent(
        key=new_key(), actor_did=PAYER, owner_did=PAYER, is_admin=False, did="did:t:2"
    )
    await store.commit(
        [
            offering("did:t:1", "cap.text.translate.v1", "Translates"),
            offering("did:t:2", "cap.old.translate.v1", "Translates"),
            left,
            card("did:t:3", card_json=odd % '[{"id":"cap.a","description":"translate \\u0000"}]'),
            card("did:t:4", card_json=odd % '"translate"'),
            card("did:t:5", card_json=odd % '[{"id":"cap.b","description":7}]'),
        ],
        AT,
    )
    assert await find_capabilities(reader, offers, "translate", limit=9) == [
        "cap.text.translate.v1"
    ]
    assert await find_capabilities(reader, offers, "7", limit=9) == ["cap.b"]
    await store.close()


def large(did: str, capability_id: str, owner: str = PAYER) -> RegisterAgent:
    """Register an agent whose card is too large for its words to be read."""
    return offering(did, capability_id, "zebra " * (CARD_BYTES_MAX // 6), owner=owner)


async def test_a_large_card_is_found_by_its_ids_and_its_words_are_never_read(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    """Two hundred cards of 60 KB made every search of everybody take longer than anybody waits."""
    store, _ = await open_with_member(database.service_url)
    await store.commit([large("did:t:1", "cap.text.translate.v1")], AT)
    assert await find_capabilities(reader, offers, "zebra", limit=9) == []
    assert await find_capabilities(reader, offers, "translate", limit=9) == [
        "cap.text.translate.v1"
    ]
    await store.close()


async def test_what_an_owner_registers_hides_nothing_of_the_others(
    database: Database, reader: LedgerReader, offers: OfferIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many hits those are ranked that their owners registered first."""
    monkeypatch.setattr(capability_search, "HITS_MAX", 5)
    store, _ = await open_with_member(database.service_url)
    crowd = [offering(f"did:t:{n}", f"cap.crowd.c{n}.v1", "Washes elephants") for n in range(9)]
    await store.commit(crowd, AT)
    for number in range(2):
        other = offering(
            f"did:u:{number}", f"cap.their.c{number}.v1", "Washes", owner=f"did:test:{number}"
        )
        await store.commit([other], AT + 1 + number)
    found = await find_capabilities(reader, offers, "washes elephants", limit=99)
    assert found[:3] == [f"cap.crowd.c{n}.v1" for n in range(3)], "those rank higher"
    assert found[3:] == [f"cap.their.c{n}.v1" for n in range(2)]
    await store.close()


async def test_what_is_registered_again_keeps_its_place(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    """An owner that registered all its agents anew came behind the last offers of others."""
    store, _ = await open_with_member(database.service_url)
    mine = [offering(f"did:t:{n}", f"cap.mine.n{n}.v1", "Works") for n in range(3)]

    async def places() -> list[tuple[str, int]]:
        await offers.catch_up()
        query = sql.text("SELECT did, place FROM callboard.offer ORDER BY did")
        return [(row["did"], row["place"]) for row in await reader.rows(query)]

    await store.commit(mine, AT)
    found = await places()
    assert found == [("did:t:0", 0), ("did:t:1", 1), ("did:t:2", 2)]
    for one in mine:
        await store.commit([replace(one, key=new_key())], AT)
        assert await places() == found
    await store.close()


async def test_no_two_offers_of_an_owner_get_one_place(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    """What is new was numbered among what was kept, by when its agent was first registered."""
    store, _ = await open_with_member(database.service_url)
    mine = [offering(f"did:t:{n}", f"cap.mine.n{n}.v1", "Works") for n in range(3)]

    async def places() -> dict[str, int]:
        await offers.catch_up()
        query = sql.text("SELECT did, place FROM callboard.offer")
        return {row["did"][-1]: row["place"] for row in await reader.rows(query)}

    async def register(*agents: int) -> dict[str, int]:
        await store.commit([replace(mine[n], key=new_key()) for n in agents], AT)
        return await places()

    async def leave(*agents: int) -> dict[str, int]:
        gone = [
            DeregisterAgent(
                key=new_key(), actor_did=PAYER, owner_did=PAYER, is_admin=False, did=did
            )
            for did in (mine[n].did for n in agents)
        ]
        await store.commit(gone, AT)
        return await places()

    await register(0, 1, 2)
    assert await leave(0, 1, 2) == {}
    assert await register(2) == {"2": 0}
    assert await register(1, 2) == {"1": 1, "2": 0}
    assert await register(0, 1, 2) == {"0": 2, "1": 1, "2": 0}
    assert await leave(1, 2) == {"0": 2}
    assert await register(0) == {"0": 0}, "of those that are left"
    await store.close()


async def test_words_find_only_the_first_offers_of_an_owner(
    database: Database, reader: LedgerReader, offers: OfferIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_index, "OWNER_OFFERS_MAX", 3)
    store, _ = await open_with_member(database.service_url)
    for number in range(5):
        await store.commit([offering(f"did:t:{number}", f"cap.c{number}.v1", "Paints")], AT)
    others = offering("did:u:1", "cap.theirs.v1", "Paints", owner="did:test:other")
    await store.commit([others], AT)
    found = await find_capabilities(reader, offers, "paints", limit=9)
    assert found == ["cap.c0.v1", "cap.c1.v1", "cap.c2.v1", "cap.theirs.v1"]
    await store.close()


class NoOffers(OfferIndex):
    """An index that a search does not bring up to date."""

    def __init__(self) -> None:
        """Without a connection."""

    async def catch_up(self) -> None:
        """Read nothing."""


NO_OFFERS = NoOffers()


async def due(reader: LedgerReader) -> int:
    """Return how many changes of agents have not been read."""
    (row,) = await reader.rows(sql.text("SELECT count(*) AS due FROM callboard.offer_due"))
    return int(row["due"])


async def test_changed_cards_are_read_a_few_at_a_time_owner_beside_owner(
    database: Database, reader: LedgerReader, offers: OfferIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search read all cards; now it reads those that have changed, and not too many of them."""
    monkeypatch.setattr(offer_index, "ROWS_MAX", 4)
    store, _ = await open_with_member(database.service_url)
    crowd = [offering(f"did:t:{n}", f"cap.c{n}.v1", "Paints") for n in range(20)]
    await store.commit(crowd, AT)
    others = offering("did:u:1", "cap.theirs.v1", "Paints", owner="did:test:other")
    await store.commit([others], AT + 1)
    assert await due(reader) == 21
    assert await offers.index_some() == 4
    (row,) = await reader.rows(
        sql.text("SELECT count(*) AS of_other FROM callboard.offer WHERE did = 'did:u:1'")
    )
    assert row["of_other"] == 1, "the first of an owner come before the second of any"
    assert len(await find_capabilities(reader, offers, "paints", limit=99)) == 4 + 4 * STEPS_MAX
    assert await due(reader) == 1
    assert len(await find_capabilities(reader, offers, "paints", limit=99)) == 21
    assert await due(reader) == 0
    monkeypatch.setattr(offer_index, "BYTES_MAX", 1)
    await store.commit(crowd_again(crowd), AT + 2)
    assert await offers.index_some() == 1, "until the bytes are counted"
    offers.follow()
    while await due(reader):
        await asyncio.sleep(0)
    await store.close()


def crowd_again(crowd: list[RegisterAgent]) -> list[RegisterAgent]:
    return [replace(command, key=new_key()) for command in crowd[:3]]


async def test_what_a_card_no_longer_says_finds_it_no_more(
    database: Database, reader: LedgerReader, offers: OfferIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while its new words have not been read."""
    store, _ = await open_with_member(database.service_url)
    await store.commit([offering("did:t:1", "cap.a.v1", "Paints")], AT)
    assert await find_capabilities(reader, offers, "paints", limit=9) == ["cap.a.v1"]
    await store.commit([offering("did:t:1", "cap.a.v1", "Draws")], AT + 1)
    monkeypatch.setattr(offer_index, "STEPS_MAX", 0)
    assert await find_capabilities(reader, offers, "paints", limit=9) == []
    monkeypatch.undo()
    assert await find_capabilities(reader, offers, "paints", limit=9) == []
    assert await find_capabilities(reader, offers, "draws", limit=9) == ["cap.a.v1"]
    await store.close()


async def test_a_search_reads_its_hits_and_no_other_offers(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    """Above 100,000 agents every search read and sorted them all, and ended after two seconds."""
    store, _ = await open_with_member(database.service_url)
    for first in range(0, 2_000, 500):
        numbers = range(first, first + 500)
        await store.commit(
            [offering(f"did:t:{n}", f"cap.n{n}.v1", "Counts sheep") for n in numbers], AT
        )
    await store.commit([offering("did:t:z", "cap.z.v1", "Washes elephants")], AT)
    assert await find_capabilities(reader, offers, "elephants", limit=9) == ["cap.z.v1"]
    async with reader.searches._engine.connect() as connection:
        values = {"words": "elephants", "limit": 9, "hits_max": capability_search.HITS_MAX}
        await connection.execute(sql.text("SET enable_seqscan = on"))
        explained = sql.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {capability_search._SEARCH.text}")
        plan = (await connection.execute(explained, values)).scalar_one()[0]["Plan"]

    assert rows_read(plan)["offer"] == 1
    await store.close()


async def test_a_card_of_very_many_capabilities_hides_none_of_its_owners(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    store, _ = await open_with_member(database.service_url)
    ids = tuple(f"cap.many.a{n}.v1" for n in range(300))
    body = orjson.dumps({"did": "did:t:0", "capabilities": [{"id": one} for one in ids]}).decode()
    assert WORDS_BYTES_MAX // len(ids) < len(body)
    await store.commit([card("did:t:0", card_json=body, capability_ids=ids)], AT)
    await store.commit([offering("did:t:1", "cap.one.v1", "Washes elephants")], AT + 1)
    assert await find_capabilities(reader, offers, "elephants", limit=9) == ["cap.one.v1"]
    assert await find_capabilities(reader, offers, "a299", limit=9) == ["cap.many.a299.v1"]
    await store.close()


def note_again(database: Database, did: str, times: int) -> None:
    """Note that an agent has changed so many times more, as so many commits of its card would."""
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO callboard.offer_due (did, owner_did) SELECT did, owner_did"
            " FROM callboard.agent, generate_series(1, %s) WHERE did = %s",
            (times, did),
        )


async def test_what_one_owner_changes_again_and_again_keeps_no_other_from_being_found(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    """Of the 20,000 oldest changes only, those of one owner, no agent of another was read."""
    store, _ = await open_with_member(database.service_url)
    crowd = [offering(f"did:t:{n}", f"cap.c{n}.v1", "Paints") for n in range(3)]
    await store.commit(crowd, AT)
    for command in crowd:
        note_again(database, command.did, 20_000)
    others = offering("did:u:1", "cap.theirs.v1", "Paints", owner="did:test:other")
    await store.commit([others], AT)
    assert await find_capabilities(reader, offers, "paints", limit=9) == [
        *("cap.c0.v1", "cap.c1.v1", "cap.c2.v1", "cap.theirs.v1")
    ]
    await store.close()


async def test_all_changes_of_an_agent_are_done_when_it_is_read(
    database: Database, reader: LedgerReader, offers: OfferIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was read again, until the last; but a step takes no more away than it can."""
    store, _ = await open_with_member(database.service_url)
    crowd = [offering(f"did:t:{n}", f"cap.c{n}.v1", "Paints") for n in range(2)]
    await store.commit(crowd, AT)
    note_again(database, "did:t:0", 50)
    note_again(database, "did:t:1", 5)
    assert (await offers.index_some(), await due(reader)) == (57, 0)
    note_again(database, "did:t:1", 5)
    note_again(database, "did:t:0", 100)
    monkeypatch.setattr(offer_index, "ROWS_MAX", 2)
    assert (await offers.index_some(), await due(reader)) == (25, 80), "each agent has its share"
    assert (await offers.index_some(), await due(reader)) == (40, 40), "20 for each row"
    await store.close()


async def store_of_three_owners(database: Database) -> LedgerStore:
    """Return the writer of a ledger in which each owner has three agents to be read."""
    store, _ = await open_with_member(database.service_url)
    for owner in "abc":
        crowd = [
            offering(f"did:{owner}:{n}", f"cap.{owner}{n}.v1", "Paints", owner=f"did:test:{owner}")
            for n in range(3)
        ]
        await store.commit(crowd, AT)
    return store


async def test_owners_take_turns_even_where_a_step_reads_a_single_change(
    database: Database, reader: LedgerReader, offers: OfferIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After steps that took too long the oldest changes came first, whosever they were."""
    monkeypatch.setattr(offer_index, "ROWS_MAX", 1)
    store = await store_of_three_owners(database)
    read = []
    while await due(reader):
        await offers.index_some()
        read.append(await find_capabilities(reader, NO_OFFERS, "paints", limit=99))
    turns = [next(id_ for id_ in now if id_ not in before) for before, now in pairwise([[], *read])]
    assert [id_[:5] for id_ in turns] == ["cap.a", "cap.b", "cap.c"] * 3
    await store.close()


async def test_a_step_that_its_bytes_end_goes_on_with_the_next_owner(
    database: Database, reader: LedgerReader, offers: OfferIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_index, "BYTES_MAX", 1)
    store = await store_of_three_owners(database)
    for _ in range(3):
        assert await offers.index_some() == 1
    found = await find_capabilities(reader, NO_OFFERS, "paints", limit=99)
    assert found == ["cap.a0.v1", "cap.b0.v1", "cap.c0.v1"]
    await store.close()


WAITS_FOR_OFFERS = """
    SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.relation = 'callboard.offer'::regclass
        AND NOT l.granted
"""


async def test_what_changes_while_a_step_reads_is_read_by_the_next(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    store, _ = await open_with_member(database.service_url)
    await store.commit([offering("did:t:1", "cap.a.v1", "Paints")], AT)
    with psycopg.connect(database.superuser_url) as other:
        other.execute("LOCK TABLE callboard.offer IN SHARE MODE")
        step = asyncio.ensure_future(offers.index_some())
        async with asyncio.timeout(60):
            while not other.execute(WAITS_FOR_OFFERS).fetchall():
                await asyncio.sleep(0)
        note_again(database, "did:t:1", 1)
    assert await step == 1
    assert await due(reader) == 1
    await store.close()


def many(number: int, *, version: int = 1) -> RegisterAgent:
    """Register an agent of an owner with 100 capabilities, whose card compresses well."""
    ids = tuple(f"{'elephants.' * 12}{number}.{version}.c{n}" for n in range(100))
    body = {"did": f"did:t:{number}", "capabilities": [{"id": one} for one in ids]}
    return card(f"did:t:{number}", card_json=orjson.dumps(body).decode(), capability_ids=ids)


async def test_one_step_writes_and_removes_few_offers_of_many_large_cards(
    database: Database, offers: OfferIndex
) -> None:
    """1,000 such cards counted as half a step: 10 s, undone, and every search began it again."""
    store, _ = await open_with_member(database.service_url)
    await store.commit([many(number) for number in range(60)], AT)
    assert await offers.index_some() == 11, "each writes 100 offers of 1 KiB"
    while await offers.index_some():
        pass
    leaving = [
        DeregisterAgent(
            key=new_key(), actor_did=PAYER, owner_did=PAYER, is_admin=False, did=f"did:t:{number}"
        )
        for number in range(60)
    ]
    await store.commit(leaving, AT + 1)
    assert await offers.index_some() == 41, "each takes 100 away, of 256 bytes"
    await store.close()


async def test_a_step_that_takes_too_long_is_followed_by_smaller_ones_until_one_succeeds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was undone and begun again as it was, so it failed for ever."""
    monkeypatch.setattr(offer_index, "ROWS_MAX", 8)
    store, _ = await open_with_member(database.service_url)
    crowd = [offering(f"did:t:{n}", f"cap.c{n}.v1", "Paints") for n in range(20)]
    await store.commit(crowd, AT)
    index = OfferIndex(database.service_url, step_timeout_ms=300)
    with psycopg.connect(database.superuser_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('callboard.index_offers'))")
        for _ in range(2):
            with pytest.raises(ServiceError, match="took too long"):
                await index.index_some()
    assert [await index.index_some() for _ in range(5)] == [2, 4, 8, 6, 0]
    await index.close()
    await store.close()


async def test_a_search_finds_what_is_indexed_although_reading_changes_takes_too_long(
    database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    """Every search was answered 503, for as long as one step did not succeed."""
    store, _ = await open_with_member(database.service_url)
    await store.commit([offering("did:t:1", "cap.a.v1", "Paints")], AT)
    assert await find_capabilities(reader, offers, "paints", limit=9) == ["cap.a.v1"]
    await store.commit([offering("did:t:2", "cap.b.v1", "Paints")], AT)
    slow = OfferIndex(database.service_url, step_timeout_ms=50)
    with psycopg.connect(database.superuser_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('callboard.index_offers'))")
        assert await find_capabilities(reader, slow, "paints", limit=9) == ["cap.a.v1"]
    await slow.close()
    assert await find_capabilities(reader, offers, "paints", limit=9) == ["cap.a.v1", "cap.b.v1"]
    await store.close()
