"""The alarm of money that is stuck, against the real Postgres. money.md (Escrow)."""

from __future__ import annotations

import logging

import pytest

from actors.cluster.escrow_watch import GRACE_MS, IDS_SHOWN, EscrowWatch
from ledger.features.workflow_reads import Overdue
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.making import AT, Flow, open_with_member

DEADLINE_MS = AT + 60_000  # of `Flow`
NOTHING = Overdue(0, ())


async def test_case_43_an_escrow_held_past_its_deadline_is_an_error_in_the_log_until_it_ends(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "callboard.escrows")
    store = await open_with_member(database.service_url)
    stuck, ended = Flow(), Flow()
    await store.commit([stuck.publish(), ended.publish(), ended.end()], AT)
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        watch = EscrowWatch(reader)
        assert await watch.check_once(DEADLINE_MS + GRACE_MS) == NOTHING
        assert caplog.messages == []
        late = DEADLINE_MS + GRACE_MS + 1
        for _ in range(2):
            assert await watch.check_once(late) == Overdue(1, (stuck.id,))
        alarm = f"escrow held past its deadline count=1 oldest={stuck.id}"
        assert [(one.levelname, one.message) for one in caplog.records] == [("ERROR", alarm)] * 2
        await store.commit([stuck.end()], AT)
        caplog.clear()
        for _ in range(2):
            assert await watch.check_once(late) == NOTHING
        assert caplog.messages == ["no escrow is held past its deadline any more"]
    await store.close()


async def test_case_43_many_are_counted_and_some_are_named(database: Database) -> None:
    store = await open_with_member(database.service_url)
    flows = [Flow(hold=1, estimate=1) for _ in range(IDS_SHOWN + 2)]
    await store.commit([flow.publish() for flow in flows], AT)
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        found = await EscrowWatch(reader).check_once(DEADLINE_MS + GRACE_MS + 1)
    assert found == Overdue(len(flows), tuple(sorted(flow.id for flow in flows)[:IDS_SHOWN]))
    await store.close()
