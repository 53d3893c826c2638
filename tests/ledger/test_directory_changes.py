"""Which agents and prices have changed since an audit id, which keeps directories fresh."""

from __future__ import annotations

import pytest

from core.market.pricing import FixedPrice
from ledger.agents.agent_commands import DeregisterAgent
from ledger.agents.directory_reads import (
    directory_changes,
    directory_pages,
    newest_change,
    price_changes,
)
from ledger.prices.price_commands import SetPrice
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.making import AT, CREDIT, PAYER, all_of, card, deposit, new_key, open_with_member

pytestmark = pytest.mark.anyio

ONE, TWO = "did:test:one", "did:test:two"


async def test_only_what_changed_later_is_told_and_once(database: Database) -> None:
    store, _ = await open_with_member(database.service_url)
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        assert await newest_change(reader) == 0
        await store.commit([card(ONE), card(TWO)], AT)
        known = await newest_change(reader)
        assert [row["did"] for row in await all_of(directory_pages(reader))] == [ONE, TWO]
        assert await directory_changes(reader, after=known) == []
        await store.commit([deposit(CREDIT)], AT)
        assert await directory_changes(reader, after=known) == [], "no agent has changed"
        # The clock of the writer may go back: another machine's is behind.
        await store.commit([card(TWO), card(TWO, card_json='{"new": 1}')], AT - 60_000)
        (row,) = await directory_changes(reader, after=known)
        assert (row["did"], row["card"]) == (TWO, '{"new": 1}')
        assert row["changed_id"] == await newest_change(reader) > known
    await store.close()


async def test_who_leaves_has_changed(database: Database) -> None:
    store, _ = await open_with_member(database.service_url)
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        await store.commit([card(ONE), card(TWO)], AT)
        known = await newest_change(reader)
        leave = DeregisterAgent(
            key=new_key(), actor_did=PAYER, owner_did=PAYER, is_admin=False, did=ONE
        )
        await store.commit([card(TWO), leave], AT)
        rows = await directory_changes(reader, after=known)
        assert [(row["did"], row["status"]) for row in rows] == [(TWO, "active"), (ONE, "inactive")]
    await store.close()


async def test_prices_set_later_are_told_once(database: Database) -> None:
    def price(capability_id: str, micro: int) -> SetPrice:
        return SetPrice(
            key=new_key(),
            actor_did="did:test:admin",
            capability_id=capability_id,
            price=FixedPrice(micro),
        )

    store, _ = await open_with_member(database.service_url)
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        assert await price_changes(reader) == []
        await store.commit([price("a.v1", 10_000), price("b.v1", 20_000)], AT)
        first = await price_changes(reader)
        assert [(row["capability_id"], row["price_cents"]) for row in first] == [
            ("a.v1", 1),
            ("b.v1", 2),
        ]
        await store.commit([price("a.v1", 30_000), price("a.v1", 40_000)], AT - 60_000)
        (row,) = await price_changes(reader, after=first[-1]["changed_id"])
        assert (row["capability_id"], row["price_cents"]) == ("a.v1", 4)
    await store.close()
