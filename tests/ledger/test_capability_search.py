"""Capabilities found by words, over cards as agents wrote them. Decision 0083."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
import pytest

from ledger.agents.agent_commands import DeregisterAgent, RegisterAgent
from ledger.agents.capability_search import find_capabilities
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.making import AT, PAYER, card, new_key, open_with_owner

pytestmark = pytest.mark.anyio


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[LedgerReader]:
    """A reader of the test's ledger."""
    async with LedgerReader(database.service_url, pool_size=2) as opened:
        yield opened


def offering(did: str, capability_id: str, description: str, name: str = "") -> RegisterAgent:
    """Register an agent with one capability."""
    body = {
        "did": did,
        "capabilities": [{"id": capability_id, "description": description}],
        "metadata": {"name": name},
    }
    text = orjson.dumps(body).decode()
    return card(did, card_json=text, capability_ids=(capability_id,))


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
