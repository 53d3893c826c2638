"""Which agents have changed since an audit id, which keeps directories fresh."""

from __future__ import annotations

import pytest

from ledger.agents.agent_commands import DeregisterAgent
from ledger.agents.directory_reads import (
    directory_changes,
    directory_pages,
    newest_change,
)
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
