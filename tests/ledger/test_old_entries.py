"""A chain that began when each event had an entry of its own, and goes on with one per command."""

from __future__ import annotations

import pytest

from callboard.verify import ChainBroken, events_of, verify_chain
from ledger.reads.reader import LedgerReader
from serve_app.operations.views import audit_record
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.dumps.restoring import add_old_entries
from tests.ledger.making import AGENT, CREDIT, PAYER, Flow, open_with_member

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000


async def test_the_chain_goes_on_from_entries_of_before(
    database: Database, auditor: Auditor
) -> None:
    old = add_old_entries(database.superuser_url)
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish()], NOW)
    await store.commit([flow.pay(CREDIT), flow.end()], NOW)
    await store.close()
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        rows = await reader.audit(limit=1_000)
        entries = [audit_record(row) for row in rows]
        assert verify_chain(entries).entries == len(entries) == old + 6
        kinds = [[event["type"] for event in events_of(entry)] for entry in entries]
        assert kinds[0] == ["workflow.finished", "escrow.released"]
        assert all(len(events) == 1 for events in kinds[-old:])
        # Both shapes are found alike.
        paid = await reader.audit(event_type="payment.settled")
        assert [row["id"] > old for row in paid] == [True, False]
        registered = await reader.audit(event_type="agent.registered", target_id=AGENT)
        assert [row["id"] <= old for row in registered] == [True]
        held = await reader.audit(event_type="escrow.held", actor_did=PAYER)
        assert [row["id"] > old for row in held] == [True, False, False]
        (workflow_id,) = {str(row["workflow_id"]) for row in paid if row["id"] <= old}
        of_old = await reader.audit(target_id=workflow_id)
        assert [row["event_types"] for row in reversed(of_old)] == [
            ["workflow.published"],
            ["escrow.held"],
            ["node.succeeded"],
            ["payment.settled"],
            ["workflow.finished"],
            ["escrow.released"],
        ]


async def test_a_changed_entry_of_before_is_noticed(database: Database, auditor: Auditor) -> None:
    old = add_old_entries(database.superuser_url)
    store, _ = await open_with_member(database.service_url)
    await store.close()
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        entries = [audit_record(row) for row in await reader.audit(limit=1_000)]
    for entry in entries[-old:]:
        before = entry["createdAt"]
        entry["createdAt"] = "2020-01-01T00:00:00.000Z"
        with pytest.raises(ChainBroken, match=f"audit entry {entry['id']}: hash"):
            verify_chain(entries)
        entry["createdAt"] = before
    verify_chain(entries)
