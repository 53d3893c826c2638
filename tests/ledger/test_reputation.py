"""Reputation: counted in the transaction that ends a node, and the same when read from history.

That both agree is checked by the auditor after every test of this folder. Reference: money.md
(Reputation).
"""

from __future__ import annotations

import pytest
from psycopg.rows import dict_row

from core.errors import ErrorCode
from core.market.reputation import Tally
from core.workflow.events import AttemptFinished, NodeChanged, Record, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Command
from ledger.features.accounts import reputation_row
from ledger.features.agents import RebuildReputation
from ledger.features.reputation import (
    corrections,
    read_compared,
    tally_of,
)
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AGENT, AT, PAYER, Flow, errors

OTHER = "did:test:other"


def ended(
    counts_as: str | None = "successful",
    *,
    status: NodeStatus = NodeStatus.SUCCESS,
    agent: str = AGENT,
    latency_ms: int = 0,
    price_micro: int = 0,
) -> list[Record]:
    """Return the records of node `a` ending after its last attempt."""
    change = NodeChanged(
        "a",
        status,
        1,
        agent,
        price_micro,
        dispatched_ms=AT,
        deadline_ms=AT + 1,
        result_json="{}" if status is NodeStatus.SUCCESS else None,
        metrics={"latency_ms": latency_ms},
        completed_ms=AT + 2,
        counts_as=counts_as,
    )
    return [AttemptFinished("a", 1, agent, "success", AT, AT + 2), change]


def counts(auditor: Auditor) -> dict[str, Tally]:
    """Return every agent's counts as stored."""
    cursor = auditor.connection.cursor(row_factory=dict_row)
    rows = cursor.execute("SELECT * FROM reputation").fetchall()
    return {row["agent_did"]: tally_of(row) for row in rows}


@pytest.mark.parametrize(
    ("counts_as", "expected"),
    [("successful", 1), ("failed", 2), ("cancelled", 3), (None, None)],
)
async def test_an_end_counts_as_its_owner_says_and_apart_if_it_has_a_price(
    counts_as: str | None, expected: int | None, store: LedgerStore, database: Database
) -> None:
    """Whatever its status would say; what counts for an agent that asks a price is paid work."""
    for price_micro in (0, 1):
        flow = Flow()
        records = ended(counts_as, status=NodeStatus.TIMEOUT, latency_ms=9, price_micro=price_micro)
        end = WorkflowChanged(WorkflowStatus.FAILED, AT + 2)
        await store.commit([flow.publish(), flow.advance(*records, end)], AT)
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        tally, _ = await reputation_row(reader, AGENT)
    once = [int(expected == place) for place in (1, 2, 3)] + [9 if expected == 1 else 0]
    assert tally == Tally(*(2 * count for count in once), *once)
    assert tally.counted(asks_price=True) == Tally(*once)


async def test_many_ends_of_a_batch_are_added_up(store: LedgerStore, auditor: Auditor) -> None:
    for _ in range(2):
        commands = []
        for agent, latency_ms in ((AGENT, 10), (OTHER, 5), (AGENT, 30)):
            flow = Flow()
            records = ended(agent=agent, latency_ms=latency_ms)
            end = WorkflowChanged(WorkflowStatus.SUCCESS, AT + 2)
            commands += [flow.publish(), flow.advance(*records, end)]
        await store.commit(commands, AT)
    assert counts(auditor) == {
        AGENT: Tally(successful=4, latency_ms_sum=80),
        OTHER: Tally(successful=2, latency_ms_sum=10),
    }


async def test_counts_that_went_wrong_are_counted_again_from_history(
    store: LedgerStore, database: Database, auditor: Auditor
) -> None:
    for agent, latency_ms in ((AGENT, 10), (OTHER, 20)):
        flow = Flow()
        end = WorkflowChanged(WorkflowStatus.SUCCESS, AT + 2)
        records = ended(agent=agent, latency_ms=latency_ms)
        await store.commit([flow.publish(), flow.advance(*records, end)], AT)
    right = counts(auditor)
    auditor.connection.execute(
        "UPDATE reputation SET failed = 3, total = 4 WHERE agent_did = %s", (AGENT,)
    )
    auditor.connection.execute(
        "INSERT INTO reputation VALUES ('did:test:nobody', 1, 1, 0, 0, 7, 0)"
    )
    auditor.connection.execute(
        "UPDATE reputation SET successful = 0, total = 0 WHERE agent_did = %s", (OTHER,)
    )
    auditor.connection.execute("UPDATE reputation SET paid_failed = failed")
    again, too_late = [await rebuild(database, key) for key in ("again", "at the same time")]
    # What ends between the reading and the correction is in both, and counted once.
    ends: list[Command] = []
    for agent in (AGENT, OTHER):
        flow = Flow()
        records = ended(agent=agent, latency_ms=1)
        ends += [flow.publish(), flow.advance(*records)]
    outcomes = await store.commit([*ends, again], AT)
    assert outcomes[-1].result == {"changed": 3}
    right = {
        did: Tally(2, latency_ms_sum=counted.latency_ms_sum + 1) for did, counted in right.items()
    }
    assert counts(auditor) == {**right, "did:test:nobody": Tally()}
    assert await errors(store, too_late) == [ErrorCode.OVERLOADED], (
        "its differences are in the counts already"
    )
    (outcome,) = await store.commit([await rebuild(database, "once more")], AT)
    assert outcome.result == {"changed": 0}
    assert counts(auditor) == {**right, "did:test:nobody": Tally()}
    auditor.connection.execute("DELETE FROM reputation WHERE total = 0")


async def rebuild(database: Database, key: str) -> RebuildReputation:
    """Compare the counts with history, as a reader; return what corrects them."""
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        found, audit_id = await read_compared(reader)
    return RebuildReputation(
        key=key,
        actor_did=PAYER,
        changes=corrections(found),
        read_audit_id=audit_id,
    )
