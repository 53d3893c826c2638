"""Which rows have changed since a look, which keeps directories fresh."""

from __future__ import annotations

from ledger.features.directory import AGENTS, PAGE_ROWS, REPUTATIONS
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import AT, CREDIT, all_of, card, deposit, leave

ONE, TWO = "did:test:one", "did:test:two"


async def test_only_what_changed_later_is_told_and_once(
    store: LedgerStore, reader: LedgerReader
) -> None:

    async def told(after: int) -> list[tuple[str, str, int]]:
        rows = await all_of(AGENTS.pages(reader.lookups, {"agents": after}))
        return [(row["did"], row["status"], row["changed_id"]) for row in rows]

    await store.commit([card(ONE), card(TWO)], AT)
    known = store.cache.head.audit_seq
    assert await told(0) == [(ONE, "active", known), (TWO, "active", known)]
    await store.commit([deposit(CREDIT)], AT)
    assert await told(known) == [], "no agent has changed"
    # The clock of the writer may go back: another machine's is behind.
    await store.commit([card(TWO), card(TWO, card_json='{"new": 1}')], AT - 60_000)
    assert await told(known) == [(TWO, "active", store.cache.head.audit_seq)]
    known = store.cache.head.audit_seq
    await store.commit([leave(ONE)], AT)
    assert await told(known) == [(ONE, "inactive", store.cache.head.audit_seq)]


async def test_changes_of_one_batch_may_be_on_two_pages(
    database: Database, reader: LedgerReader
) -> None:
    with connect(database.superuser_url) as connection:
        connection.execute(
            "INSERT INTO reputation (agent_did, total, successful, failed, cancelled,"
            " latency_ms_sum, updated_ms, changed_id)"
            " SELECT 'did:x:' || n, 0, 0, 0, 0, 0, 1, 1 + n / 1000 FROM generate_series(0, %s) n",
            (2 * PAGE_ROWS + 999,),
        )
    rows = await all_of(REPUTATIONS.pages(reader.lookups, {"reputations": 0}))
    assert len({row["agent_did"] for row in rows}) == len(rows) == 2 * PAGE_ROWS + 1_000
    rows = await all_of(REPUTATIONS.pages(reader.lookups, {"reputations": 1}))
    assert len(rows) == 2 * PAGE_ROWS
