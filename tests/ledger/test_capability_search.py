"""Capabilities found by words, over cards as agents wrote them. Decision 0083."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
import pytest

from ledger.agents.agent_commands import DeregisterAgent, RegisterAgent
from ledger.agents.capability_search import (
    BYTES_MAX,
    CARD_BYTES_MAX,
    WORDS_BYTES_MAX,
    find_capabilities,
)
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.making import AT, PAYER, card, new_key, open_with_owner

pytestmark = pytest.mark.anyio


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[LedgerReader]:
    """A reader of the test's ledger."""
    async with LedgerReader(database.service_url, pool_size=2) as opened:
        yield opened


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
    database: Database, reader: LedgerReader
) -> None:
    store, _ = await open_with_owner(database.service_url)
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
        return await find_capabilities(reader, words, limit=limit)

    order = ["cap.text.summarise.v1", "cap.web.fetch.v1", "cap.text.other.v1"]
    assert await found("please summarise this") == order
    assert await found("shorten, read a page?", 1) == ["cap.web.fetch.v1"], "two words beat one"
    assert await found("smaller picture") == ["cap.image.resize.v1"]
    for nothing in ("", "the and of", "zebra", "& | ! :* ( '", "\x00", "x" * 5_000):
        assert await found(nothing) == []
    await store.close()


async def test_search_passes_over_agents_that_left_and_cards_it_cannot_read(
    database: Database, reader: LedgerReader
) -> None:
    store, _ = await open_with_owner(database.service_url)
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
    assert await find_capabilities(reader, "translate", limit=9) == ["cap.text.translate.v1"]
    assert await find_capabilities(reader, "7", limit=9) == ["cap.b"]
    await store.close()


def large(did: str, capability_id: str, owner: str = PAYER) -> RegisterAgent:
    """Register an agent whose card is too large for its words to be read."""
    return offering(did, capability_id, "zebra " * (CARD_BYTES_MAX // 6), owner=owner)


async def test_a_large_card_is_found_by_its_ids_and_its_words_are_never_read(
    database: Database, reader: LedgerReader
) -> None:
    """Two hundred cards of 60 KB made every search of everybody take longer than anybody waits."""
    store, _ = await open_with_owner(database.service_url)
    await store.commit([large("did:t:1", "cap.text.translate.v1")], AT)
    assert await find_capabilities(reader, "zebra", limit=9) == []
    assert await find_capabilities(reader, "translate", limit=9) == ["cap.text.translate.v1"]
    await store.close()


async def test_what_an_owner_registers_hides_nothing_of_the_others(
    database: Database, reader: LedgerReader
) -> None:
    """Beyond the bound its own cards are not read; every set of capabilities has one read first."""
    store, _ = await open_with_owner(database.service_url)
    text = "x" * (CARD_BYTES_MAX - 500)
    crowd = [
        offering(f"did:t:{n}", "cap.crowd.same.v1", text)
        for n in range(BYTES_MAX // CARD_BYTES_MAX + 80)
    ]
    later = offering("did:t:later", "cap.crowd.other.v1", "Paints horses")
    last = offering("did:t:last", "cap.crowd.same.v1", "Draws camels")
    others = offering("did:u:1", "cap.theirs.v1", "Washes elephants", owner="did:test:other")
    for first in range(0, len(crowd), 100):
        await store.commit(crowd[first : first + 100], AT)
    await store.commit([later, last, others], AT + 1)
    assert await find_capabilities(reader, "camels", limit=9) == []
    assert await find_capabilities(reader, "horses", limit=9) == ["cap.crowd.other.v1"]
    assert await find_capabilities(reader, "elephants", limit=9) == ["cap.theirs.v1"]
    await store.close()


async def test_a_card_of_very_many_capabilities_hides_none_of_its_owners(
    database: Database, reader: LedgerReader
) -> None:
    store, _ = await open_with_owner(database.service_url)
    ids = tuple(f"cap.many.a{n}.v1" for n in range(300))
    body = orjson.dumps({"did": "did:t:0", "capabilities": [{"id": one} for one in ids]}).decode()
    assert WORDS_BYTES_MAX // len(ids) < len(body)
    await store.commit([card("did:t:0", card_json=body, capability_ids=ids)], AT)
    await store.commit([offering("did:t:1", "cap.one.v1", "Washes elephants")], AT + 1)
    assert await find_capabilities(reader, "elephants", limit=9) == ["cap.one.v1"]
    assert await find_capabilities(reader, "a299", limit=9) == ["cap.many.a299.v1"]
    await store.close()
