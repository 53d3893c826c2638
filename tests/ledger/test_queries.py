"""Reads: what was committed, in the order and within the page that was asked for."""

from __future__ import annotations

from ledger.reads.agent_pages import FEW_MAX, agents_statement
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import connect, rows_read
from tests.ledger.making import (
    AT,
    card,
)


async def test_agents_of_a_capability_are_read_in_order_whether_few_or_many(
    store: LedgerStore, database: Database, reader: LedgerReader
) -> None:
    """One agent of a capability among 100,000 took a read of all of them."""
    count = FEW_MAX + 2
    agents = [
        card(f"did:test:{n:04}", capability_ids=("x.v1", *(("y.v1",) if n in (7, 900) else ())))
        for n in range(count)
    ]
    for first in range(0, count, 100):
        await store.commit(agents[first : first + 100], AT)
    few = await reader.agents(capability_id="y.v1", status="active", limit=5)
    assert [row["did"] for row in few] == ["did:test:0007", "did:test:0900"]
    assert not few.is_cut
    after = await reader.agents(capability_id="y.v1", after_did="did:test:0007")
    assert [row["did"] for row in after] == ["did:test:0900"]
    many = await reader.agents(capability_id="x.v1", limit=2, offset=3, after_did="did:test:0900")
    assert [row["did"] for row in many] == ["did:test:0904", "did:test:0905"]
    assert (await reader.agents(capability_id="x.v1", limit=9, bytes_max=1)).is_cut
    assert await reader.agents(capability_id="z.v1") == []
    statement = agents_statement(frozenset({"capability_id", "status"}))
    explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
    values = {"status": "active", "viewer": None, "limit": 5, "offset": 0, "bytes_max": 1_000}
    for capability_id, most in (("y.v1", 4), ("x.v1", FEW_MAX + 6)):
        asked = {**values, "capability_id": capability_id}
        (plan,) = await reader.records.rows(explained, asked)
        assert rows_read(plan["QUERY PLAN"][0]["Plan"])["agent"] <= most, capability_id
    # Who has left counts no more: all agents were looked at, for one that is there.
    with connect(database.superuser_url) as connection:
        connection.execute("UPDATE agent SET status = 'inactive' WHERE did <> 'did:test:0007'")
    left = await reader.agents(capability_id="x.v1", status="active", limit=5)
    assert [row["did"] for row in left] == ["did:test:0007"]
    (plan,) = await reader.records.rows(explained, {**values, "capability_id": "x.v1"})
    assert rows_read(plan["QUERY PLAN"][0]["Plan"])["agent"] <= FEW_MAX + 6
