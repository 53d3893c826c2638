"""Audit entries by time: what a bisection over the ids finds is what a look at each entry finds."""

from __future__ import annotations

from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.ledger.making import AT, PAYER, deposit

STEP_MS = 1_000


async def test_a_period_holds_the_entries_of_its_times_alone(
    empty_store: LedgerStore, reader: LedgerReader
) -> None:
    for number in range(1, 6):
        # Several entries have one time, those of one batch.
        await empty_store.commit([deposit(1) for _ in range(number)], AT + number * STEP_MS)
    rows = await reader.audit(limit=100)
    times = sorted({row["created_ms"] for row in rows})
    assert len(rows) == 1 + 15
    for start in (None, 0, *times, times[-1] + 1):
        for end in (None, 0, *times, times[-1] + 1, 2**42):
            wanted = [
                row["id"]
                for row in rows
                if (start is None or row["created_ms"] >= start)
                and (end is None or row["created_ms"] < end)
            ]
            found = await reader.audit(limit=100, start_ms=start, end_ms=end)
            assert [row["id"] for row in found] == wanted, (start, end)
            own = await reader.audit(limit=100, start_ms=start, end_ms=end, party_did=PAYER)
            assert [row["id"] for row in own] == [one for one in wanted if one > 1], (start, end)
