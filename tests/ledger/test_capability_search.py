"""Capabilities found by words, over cards as agents wrote them."""

from __future__ import annotations

import asyncio

import orjson
import psycopg
import pytest
import sqlalchemy as sql
from msgspec.structs import replace

from core.errors import ServiceError
from ledger.features import offers as offer_candidates
from ledger.features import offers as offer_index
from ledger.features.agents import RegisterAgent
from ledger.features.discovery import AgentSearch, find_capabilities, find_offers, offers_for_draft
from ledger.features.offers import STEPS_MAX, OfferIndex
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import AT, PAYER, NextWriter, card, leave, new_key
from tests.platform.waiting import until

# As callboard.due_offers has them.


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
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
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


async def test_search_passes_over_agents_that_left_and_cards_it_cannot_read(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    odd = '{"did":"did:t:9","capabilities":%s}'
    await store.commit(
        [
            offering("did:t:1", "cap.text.translate.v1", "Translates"),
            offering("did:t:2", "cap.old.translate.v1", "Translates"),
            leave("did:t:2"),
            card("did:t:3", card_json=odd % '[{"id":"cap.a","description":"translate \\u0000"}]'),
            card("did:t:4", card_json=odd % '"translate"'),
            card("did:t:5", card_json=odd % '[{"id":"cap.b","description":7}]'),
        ],
        AT,
    )
    assert await find_capabilities(reader, offers, "translate", limit=9) == [
        *("cap.text.translate.v1", "cap.a")
    ]
    assert await find_capabilities(reader, offers, "7", limit=9) == ["cap.b"]


async def test_of_a_large_card_the_first_words_are_read(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    """Cards above 8 KiB were found by no word; reading all words took longer than anybody waits."""
    text = "zebra " + "stripes " * 5_000 + "okapi"
    await store.commit([offering("did:t:1", "cap.text.translate.v1", text)], AT)
    for word, found in (("translate", True), ("zebra", True), ("stripe", True), ("okapi", False)):
        hits = await find_capabilities(reader, offers, word, limit=9)
        assert hits == ["cap.text.translate.v1"] * found, word


async def test_what_an_owner_registers_hides_nothing_of_the_others(
    next_writer: NextWriter,
    reader: LedgerReader,
    offers: OfferIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many hits those are ranked that their owners registered first."""
    monkeypatch.setattr(offer_candidates, "HITS_MAX", 5)
    store = await next_writer()
    crowd = [offering(f"did:t:{n}", f"cap.crowd.c{n}.v1", "Washes elephants") for n in range(9)]
    await store.commit(crowd, AT)
    for number in range(2):
        other = offering(
            f"did:u:{number}", f"cap.their.c{number}.v1", "Washes", owner=f"did:test:{number}"
        )
        await store.commit([other], AT + 1 + number)
    found = await find_capabilities(reader, offers, "washes", limit=99)
    assert found == [
        *(f"cap.crowd.c{n}.v1" for n in range(3)), *(f"cap.their.c{n}.v1" for n in range(2))
    ]  # fmt: skip


async def test_no_two_offers_of_an_owner_get_one_place(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    """What is new was numbered among what was kept, by when its agent was first registered."""
    mine = [offering(f"did:t:{n}", f"cap.mine.n{n}.v1", "Works") for n in range(3)]

    async def places() -> dict[str, int]:
        await offers.catch_up()
        query = sql.text("SELECT did, place FROM callboard.offer")
        return {row["did"][-1]: row["place"] for row in await reader.rows(query)}

    async def register(*agents: int) -> dict[str, int]:
        await store.commit([replace(mine[n], key=new_key()) for n in agents], AT)
        return await places()

    async def remove(*agents: int) -> dict[str, int]:
        gone = [leave(did) for did in (mine[n].did for n in agents)]
        await store.commit(gone, AT)
        return await places()

    await register(0, 1, 2)
    assert await remove(0, 1, 2) == {}
    assert await register(2) == {"2": 0}
    assert await register(1, 2) == {"1": 1, "2": 0}
    assert await register(0, 1, 2) == {"0": 2, "1": 1, "2": 0}


async def test_words_find_only_the_first_offers_of_an_owner(
    next_writer: NextWriter,
    reader: LedgerReader,
    offers: OfferIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offer_index, "OWNER_OFFERS_MAX", 3)
    store = await next_writer()
    for number in range(5):
        await store.commit([offering(f"did:t:{number}", f"cap.c{number}.v1", "Paints")], AT)
    others = offering("did:u:1", "cap.theirs.v1", "Paints", owner="did:test:other")
    await store.commit([others], AT)
    found = await find_capabilities(reader, offers, "paints", limit=9)
    assert found == ["cap.c0.v1", "cap.c1.v1", "cap.c2.v1", "cap.theirs.v1"]


async def due(reader: LedgerReader) -> int:
    """Return how many changes of agents have not been read."""
    (row,) = await reader.rows(sql.text("SELECT count(*) AS due FROM callboard.offer_due"))
    return int(row["due"])


async def test_changed_cards_are_read_a_few_at_a_time(
    next_writer: NextWriter,
    reader: LedgerReader,
    offers: OfferIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search read all cards; now it reads those that have changed, and not too many of them."""
    monkeypatch.setattr(offer_index, "ROWS_MAX", 4)
    monkeypatch.setattr(offers, "_rows_max", 4)
    store = await next_writer()
    crowd = [offering(f"did:t:{n:02}", f"cap.c{n}.v1", "Paints") for n in range(20)]
    await store.commit(crowd, AT)
    assert len(await offers.index_some()) == 4
    assert len(await find_capabilities(reader, offers, "paints", limit=99)) == 4 + 4 * STEPS_MAX
    assert await due(reader) == 0
    monkeypatch.setattr(offer_index, "BYTES_MAX", 1)
    await store.commit(crowd_again(crowd), AT + 2)
    assert len(await offers.index_some()) == 1, "until the bytes are counted"
    assert await offers.index_some({"did:t:02"}) == {"did:t:02"}, "a registration waits for it"
    offers.follow()
    while await due(reader):
        await asyncio.sleep(0)


def crowd_again(crowd: list[RegisterAgent]) -> list[RegisterAgent]:
    return [replace(command, key=new_key()) for command in crowd[:3]]


async def test_what_a_card_no_longer_says_finds_it_no_more(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while its new words have not been read."""
    await store.commit([offering("did:t:1", "cap.a.v1", "Paints")], AT)
    assert await find_capabilities(reader, offers, "paints", limit=9) == ["cap.a.v1"]
    await store.commit([offering("did:t:1", "cap.a.v1", "Draws")], AT + 1)
    monkeypatch.setattr(offer_index, "STEPS_MAX", 0)
    assert await find_capabilities(reader, offers, "paints", limit=9) == []
    monkeypatch.undo()
    assert await find_capabilities(reader, offers, "paints", limit=9) == []
    assert await find_capabilities(reader, offers, "draws", limit=9) == ["cap.a.v1"]


async def test_a_card_of_very_many_capabilities_hides_none_of_its_owners(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    ids = tuple(f"cap.many.a{n}.v1" for n in range(300))
    body = orjson.dumps({"did": "did:t:0", "capabilities": [{"id": one} for one in ids]}).decode()
    await store.commit([card("did:t:0", card_json=body, capability_ids=ids)], AT)
    await store.commit([offering("did:t:1", "cap.one.v1", "Washes elephants")], AT + 1)
    assert await find_capabilities(reader, offers, "elephants", limit=9) == ["cap.one.v1"]
    assert await find_capabilities(reader, offers, "a299", limit=9) == ["cap.many.a299.v1"]


def note_again(database: Database, did: str, times: int) -> None:
    """Note that an agent has changed so many times more, as so many commits of its card would."""
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO callboard.offer_due (did) SELECT did"
            " FROM callboard.agent, generate_series(1, %s) WHERE did = %s",
            (times, did),
        )


async def test_what_one_owner_changes_again_and_again_keeps_no_other_from_being_found(
    store: LedgerStore, database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    """Of the 20,000 oldest changes only, those of one owner, no agent of another was read."""
    crowd = [offering(f"did:t:{n}", f"cap.c{n}.v1", "Paints") for n in range(3)]
    await store.commit(crowd, AT)
    for command in crowd:
        note_again(database, command.did, 20_000)
    others = offering("did:u:1", "cap.theirs.v1", "Paints", owner="did:test:other")
    await store.commit([others], AT)
    assert await find_capabilities(reader, offers, "paints", limit=9) == [
        *("cap.c0.v1", "cap.c1.v1", "cap.c2.v1", "cap.theirs.v1")
    ]


async def test_words_are_counted_as_often_as_offers_have_them(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:

    async def counts() -> dict[str, int]:
        await offers.catch_up()
        query = sql.text(
            "SELECT coalesce(c.word, w.word) AS word, c.offers, w.offers AS counted FROM ("
            "SELECT word, count(*) AS offers FROM callboard.offer,"
            " unnest(tsvector_to_array(words)) one(word) GROUP BY word) c"
            " FULL JOIN callboard.offer_word w ON w.word = c.word"
        )
        rows = await reader.rows(query)
        assert all(row["offers"] == row["counted"] for row in rows), rows
        return {row["word"]: row["offers"] for row in rows}

    await store.commit([offering(f"did:t:{n}", f"cap.c{n}.v1", "Paints") for n in range(3)], AT)
    assert (await counts())["paint"] == 3
    await store.commit([offering("did:t:0", "cap.c0.v1", "Draws")], AT)
    found = await counts()
    assert (found["paint"], found["draw"]) == (2, 1)
    await store.commit([leave("did:t:0")], AT)
    assert "draw" not in await counts()


async def test_a_rare_word_and_an_exact_id_are_found_among_many(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex
) -> None:
    crowd = [offering(f"did:t:{n}", f"cap.w{n}.v1", "wombat helper") for n in range(160)]
    await store.commit(crowd, AT)
    rare = offering("did:u:1", "cap.rare.v1", "wombat quokka", owner="did:test:other")
    await store.commit([rare], AT)
    while await offers.index_some():
        pass
    assert (await find_capabilities(reader, offers, "wombat quokka", limit=9))[0] == "cap.rare.v1"
    (found, *_) = await find_offers(
        reader, AgentSearch(words="wombat quokka"), limit=9, slowest_ms=1, caller=PAYER
    )
    assert found["capability_id"] == "cap.rare.v1"
    words = "wombat helper cap.w77.v1, please."
    assert (await find_capabilities(reader, offers, words, limit=9))[0] == "cap.w77.v1"
    search = AgentSearch(words=words)
    (found, *_) = await find_offers(reader, search, limit=9, slowest_ms=1, caller=PAYER)
    assert found["capability_id"] == "cap.w77.v1"
    draft = await offers_for_draft(reader, offers, words, caller=PAYER)
    assert "cap.w77.v1" in [offer.capability_id for offer in draft()]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Translate/summarize PDFs", ("summarize", "pdf", "translate a PDF", "PDFs")),
        ("中文翻译服务", ("翻译", "中文翻译")),
        ("traducción", ("traduccion", "traducción", "traduccio\u0301n")),
        ("traduccio\u0301n", ("traduccion", "traducción")),
        ("Übersetzung", ("ubersetzung", "übersetzung")),
    ],
)
async def test_words_of_every_script_are_found(
    store: LedgerStore, reader: LedgerReader, offers: OfferIndex, said: str, words: tuple[str, ...]
) -> None:
    await store.commit([offering("did:t:1", "cap.one.v1", said)], AT)
    await store.commit([offering("did:t:2", "cap.two.v1", "Resizes images")], AT)
    for one in words:
        assert await find_capabilities(reader, offers, one, limit=9) == ["cap.one.v1"], one


WAITS_FOR_OFFERS = """
    SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.relation = 'callboard.offer'::regclass
        AND NOT l.granted
"""


async def test_what_changes_while_a_step_reads_is_read_by_the_next(
    store: LedgerStore, database: Database, reader: LedgerReader, offers: OfferIndex
) -> None:
    await store.commit([offering("did:t:1", "cap.a.v1", "Paints")], AT)
    with psycopg.connect(database.superuser_url) as other:
        other.execute("LOCK TABLE callboard.offer IN SHARE MODE")
        step = asyncio.ensure_future(offers.index_some())
        await until(lambda: other.execute(WAITS_FOR_OFFERS).fetchall())
        note_again(database, "did:t:1", 1)
    assert await step == {"did:t:1"}
    assert await due(reader) == 1


async def test_a_step_that_takes_too_long_is_followed_by_smaller_ones_until_one_succeeds(
    next_writer: NextWriter, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was undone and begun again as it was, so it failed for ever."""
    monkeypatch.setattr(offer_index, "ROWS_MAX", 8)
    store = await next_writer()
    crowd = [offering(f"did:t:{n}", f"cap.c{n}.v1", "Paints") for n in range(20)]
    await store.commit(crowd, AT)
    monkeypatch.setattr(OfferIndex, "statement_timeout_ms", 300)
    index = OfferIndex(database.service_url)
    with psycopg.connect(database.superuser_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('callboard.index_offers'))")
        for _ in range(2):
            with pytest.raises(ServiceError, match="took too long"):
                await index.index_some()
    assert [len(await index.index_some()) for _ in range(5)] == [2, 4, 8, 6, 0]
    await index.close()


async def test_a_search_finds_what_is_indexed_although_reading_changes_takes_too_long(
    store: LedgerStore,
    database: Database,
    reader: LedgerReader,
    offers: OfferIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every search was answered 503, for as long as one step did not succeed."""
    await store.commit([offering("did:t:1", "cap.a.v1", "Paints")], AT)
    assert await find_capabilities(reader, offers, "paints", limit=9) == ["cap.a.v1"]
    await store.commit([offering("did:t:2", "cap.b.v1", "Paints")], AT)
    monkeypatch.setattr(OfferIndex, "statement_timeout_ms", 50)
    slow = OfferIndex(database.service_url)
    with psycopg.connect(database.superuser_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('callboard.index_offers'))")
        assert await find_capabilities(reader, slow, "paints", limit=9) == ["cap.a.v1"]
    await slow.close()
    assert await find_capabilities(reader, offers, "paints", limit=9) == ["cap.a.v1", "cap.b.v1"]
