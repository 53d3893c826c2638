"""Feedback: a payer says once what an agent was worth. Decision reputation-and-ranking."""

from __future__ import annotations

import pytest

from ledger.commands import OutcomeStatus
from ledger.disputes.dispute_commands import GiveFeedback, feedback_key
from ledger.disputes.dispute_reads import feedback_rows
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.disputing import paid_workflow
from tests.ledger.making import AGENT, AT, CREDIT, PAYER, open_with_member

pytestmark = pytest.mark.anyio


async def test_feedback_is_given_once_per_workflow_and_agent(
    database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, CREDIT)

    def feedback(milli: int, request_hash: bytes, agent: str = AGENT) -> GiveFeedback:
        return GiveFeedback(
            key=feedback_key(flow.id, agent),
            request_hash=request_hash,
            actor_did=PAYER,
            workflow_id=flow.id,
            agent_did=agent,
            payer_did=PAYER,
            rating_milli=milli,
            comment="",
        )

    outcomes = await store.commit(
        [feedback(333, b"1"), feedback(333, b"1"), feedback(0, b"2"), feedback(5, b"", "did:z")], AT
    )
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == [
        OutcomeStatus.APPLIED,
        OutcomeStatus.REPEATED,
        OutcomeStatus.REJECTED,
        OutcomeStatus.APPLIED,
    ]
    rows = await feedback_rows(reader, flow.id)
    assert [(row["agent_did"], str(row["rating"])) for row in rows] == [
        (AGENT, "0.333"),
        ("did:z", "0.005"),
    ]
    await store.close()
