"""Reputation: counted in the transaction that ends a node, and the same when read from history.

That both agree is checked by the auditor after every test of this folder. Spec: Settlement rules 9.
"""

from __future__ import annotations

import pytest

from core.errors import ErrorCode
from core.market.reputation import Tally
from core.workflow.events import AttemptFinished, NodeChanged, Record, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.agents.agent_commands import RebuildReputation
from ledger.agents.reputation import (
    LATENCY_MS_MAX,
    corrections,
    read_compared,
    tally_of,
)
from ledger.commands import Command
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AGENT, AT, PAYER, Flow, open_with_member

pytestmark = pytest.mark.anyio

OTHER = "did:test:other"


def ended(
    status: NodeStatus,
    code: str | None = None,
    *,
    agent: str = AGENT,
    latency_ms: int | None = None,
    attempts: int = 1,
    **error: object,
) -> list[Record]:
    """Return the records of node `a` ending after its last attempt."""
    change = NodeChanged(
        "a",
        status,
        attempts,
        agent,
        dispatched_ms=AT,
        deadline_ms=AT + 1,
        error=None if code is None else {"code": code, "message": "it ended", **error},
        result_json="{}" if status is NodeStatus.SUCCESS else None,
        metrics=None if latency_ms is None else {"latency_ms": latency_ms},
        completed_ms=AT + 2,
    )
    outcome = "success" if code is None else "discarded"
    finished = AttemptFinished("a", attempts, agent, outcome, AT, AT + 2, error_code=code)
    return [finished, change]


def counts(auditor: Auditor) -> dict[str, Tally]:
    """Return every agent's counts as stored."""
    rows = auditor.connection.execute(
        "SELECT agent_did, successful, failed, cancelled, latency_ms_sum FROM reputation"
    ).fetchall()
    names = ("agent_did", "successful", "failed", "cancelled", "latency_ms_sum")
    return {row[0]: tally_of(dict(zip(names, row, strict=True))) for row in rows}


CASES: dict[str, tuple[list[Record], WorkflowStatus, dict[str, Tally]]] = {
    "a success counts with its latency": (
        ended(NodeStatus.SUCCESS, latency_ms=120),
        WorkflowStatus.SUCCESS,
        {AGENT: Tally(successful=1, latency_ms_sum=120)},
    ),
    "a latency below 0, of a clock that was set back, counts as none": (
        ended(NodeStatus.SUCCESS, latency_ms=-3_600_000),
        WorkflowStatus.SUCCESS,
        {AGENT: Tally(successful=1)},
    ),
    "a latency of years, of a clock that was set forward, counts as the longest": (
        ended(NodeStatus.SUCCESS, latency_ms=2**62),
        WorkflowStatus.SUCCESS,
        {AGENT: Tally(successful=1, latency_ms_sum=LATENCY_MS_MAX)},
    ),
    "the agent's own error counts as failed": (
        ended(NodeStatus.FAILED, "AGENT_ERROR", attempts=4),
        WorkflowStatus.FAILED,
        {AGENT: Tally(failed=1)},
    ),
    "a time-out counts as failed": (
        ended(NodeStatus.TIMEOUT, "AGENT_TIMEOUT"),
        WorkflowStatus.FAILED,
        {AGENT: Tally(failed=1)},
    ),
    "one that was too busy is spared": (
        ended(NodeStatus.FAILED, "AGENT_ERROR", isSpared=True),
        WorkflowStatus.FAILED,
        {},
    ),
    "one that was not reached is spared": (
        ended(NodeStatus.FAILED, "AGENT_UNAVAILABLE"),
        WorkflowStatus.FAILED,
        {},
    ),
    "work that was cancelled under way counts as cancelled": (
        ended(NodeStatus.SKIPPED, "CANCELLED"),
        WorkflowStatus.CANCELLED,
        {AGENT: Tally(cancelled=1)},
    ),
    "what was cancelled between two attempts counts not": (
        ended(NodeStatus.SKIPPED, "CANCELLED")[1:],
        WorkflowStatus.CANCELLED,
        {},
    ),
    "what ran into the workflow's end counts as cancelled": (
        ended(NodeStatus.TIMEOUT, "WORKFLOW_TIMEOUT"),
        WorkflowStatus.TIMEOUT,
        {AGENT: Tally(cancelled=1)},
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_an_end_counts_for_the_agent_of_the_last_attempt(
    case: str, database: Database, auditor: Auditor
) -> None:
    records, status, expected = CASES[case]
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit(
        [flow.publish(), flow.advance(*records, WorkflowChanged(status, AT + 2))], AT
    )
    assert counts(auditor) == expected
    await store.close()


async def test_many_ends_of_a_batch_are_added_up(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_member(database.service_url)
    for _ in range(2):
        commands = []
        for agent, latency_ms in ((AGENT, 10), (OTHER, 5), (AGENT, 30)):
            flow = Flow(epoch)
            records = ended(NodeStatus.SUCCESS, agent=agent, latency_ms=latency_ms)
            end = WorkflowChanged(WorkflowStatus.SUCCESS, AT + 2)
            commands += [flow.publish(), flow.advance(*records, end)]
        await store.commit(commands, AT)
    assert counts(auditor) == {
        AGENT: Tally(successful=4, latency_ms_sum=80),
        OTHER: Tally(successful=2, latency_ms_sum=10),
    }
    await store.close()


async def test_a_repeated_end_counts_once(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    end = WorkflowChanged(WorkflowStatus.SUCCESS, AT + 2)
    advance = flow.advance(*ended(NodeStatus.SUCCESS, latency_ms=7), end)
    await store.commit([flow.publish(), advance, advance], AT)
    await store.commit([advance], AT)
    assert counts(auditor) == {AGENT: Tally(successful=1, latency_ms_sum=7)}
    await store.close()


async def test_counts_that_went_wrong_are_counted_again_from_history(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    for agent, latency_ms in ((AGENT, 10), (OTHER, 20)):
        flow = Flow(epoch)
        end = WorkflowChanged(WorkflowStatus.SUCCESS, AT + 2)
        records = ended(NodeStatus.SUCCESS, agent=agent, latency_ms=latency_ms)
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
    again, too_late = [await rebuild(database, key) for key in ("again", "at the same time")]
    # What ends between the reading and the correction is in both, and counted once.
    ends: list[Command] = []
    for agent in (AGENT, OTHER):
        flow = Flow(epoch)
        records = ended(NodeStatus.SUCCESS, agent=agent, latency_ms=1)
        ends += [flow.publish(), flow.advance(*records)]
    outcomes = await store.commit([*ends, again], AT)
    assert outcomes[-1].result == {"changed": 3}
    right = {
        did: Tally(2, latency_ms_sum=counted.latency_ms_sum + 1) for did, counted in right.items()
    }
    assert counts(auditor) == {**right, "did:test:nobody": Tally()}
    (refused,) = await store.commit([too_late], AT)
    assert refused.error is ErrorCode.OVERLOADED, "its differences are in the counts already"
    (outcome,) = await store.commit([await rebuild(database, "once more")], AT)
    assert outcome.result == {"changed": 0}
    assert counts(auditor) == {**right, "did:test:nobody": Tally()}
    auditor.connection.execute("DELETE FROM reputation WHERE total = 0")
    await store.close()


async def rebuild(database: Database, key: str) -> RebuildReputation:
    """Compare the counts with history, as a reader; return what corrects them."""
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        found, audit_id = await read_compared(reader)
    return RebuildReputation(
        key=key, actor_did=PAYER, changes=corrections(found), read_audit_id=audit_id
    )
