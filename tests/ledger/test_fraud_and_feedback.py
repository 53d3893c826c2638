"""Upheld fraud costs locked stake; a payer says once what an agent was worth.

Spec: Settlement rules 8; money.md cases 27 and 28; decisions 0081 and 0082.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ledger.books import stake_address, stake_locked_address
from ledger.commands import OutcomeStatus
from ledger.dispute_queries import feedback_rows
from ledger.queries import LedgerReader
from ledger.review_commands import GiveFeedback, feedback_key
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, paid_workflow, resolve, stake
from tests.ledger.making import AGENT, AT, CREDIT, PAYER, open_with_owner

pytestmark = pytest.mark.anyio


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[LedgerReader]:
    """A reader of the test's ledger."""
    async with LedgerReader(database.service_url, pool_size=2) as opened:
        yield opened


@pytest.fixture
def auditor(database: Database) -> Iterator[Auditor]:
    """Checks the books during and after the test."""
    opened = Auditor(database.superuser_url)
    yield opened
    opened.check()
    opened.close()


@pytest.mark.parametrize(("bps", "slashed"), [(10_000, 600_000), (1_000, 60_000), (0, 0)])
async def test_upheld_fraud_slashes_locked_stake_and_never_free_stake(
    database: Database, auditor: Auditor, bps: int, slashed: int
) -> None:
    """money.md cases 27 and 28: to the payer's wallet, without a fee, only what is locked."""
    store, epoch = await open_with_owner(database.service_url)
    flow = await paid_workflow(store, epoch, 2 * CREDIT)
    await stake(database, store, free=CREDIT, locked=600_000)
    store, epoch = await open_with_owner(database.service_url, micro=1)
    before = auditor.balance(PAYER)
    outcome = await resolve(store, about(flow, dispute_type="fraud"), slash=bps)
    assert outcome.result["slashedMicro"] == slashed
    assert auditor.balance(PAYER) == before + slashed
    by_address = "SELECT balance FROM account WHERE address = %s"
    assert auditor.one(by_address, stake_locked_address(AGENT)) == 600_000 - slashed
    assert auditor.one(by_address, stake_address(AGENT)) == CREDIT
    events = auditor.one("SELECT count(*) FROM audit WHERE event_type = 'stake.slashed'")
    assert events == (1 if slashed else 0)
    await store.close()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"dispute_type": "quality"}, "resolved_complainant"),
        ({"dispute_type": "fraud"}, "dismissed"),
        ({"dispute_type": "fraud"}, "resolved_split"),
        (
            {"dispute_type": "fraud", "complainant_did": AGENT, "respondent_did": PAYER},
            "resolved_complainant",
        ),
    ],
)
async def test_only_fraud_decided_for_the_payer_slashes(
    database: Database, auditor: Auditor, changes: dict[str, Any], status: str
) -> None:
    store, epoch = await open_with_owner(database.service_url)
    flow = await paid_workflow(store, epoch, 2 * CREDIT)
    await stake(database, store, free=CREDIT, locked=600_000)
    store, epoch = await open_with_owner(database.service_url, micro=1)
    outcome = await resolve(store, about(flow, **changes), status=status)
    assert outcome.result["slashedMicro"] == 0
    await store.close()


async def test_fraud_of_a_payer_does_not_slash_the_stake_it_has_as_an_agent(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_owner(database.service_url)
    earlier = await paid_workflow(store, epoch, 3 * CREDIT)
    await stake(database, store, free=CREDIT, locked=600_000)
    store, epoch = await open_with_owner(database.service_url, micro=1)
    await resolve(store, about(earlier))  # the writer knows the stake's accounts from now on
    flow = await paid_workflow(store, epoch, 1_000, agent="did:test:w", payer=AGENT, hold=1_000)
    complaint = about(
        flow, dispute_type="fraud", complainant_did="did:test:w", respondent_did=AGENT
    )
    assert (await resolve(store, complaint)).result["slashedMicro"] == 0
    await store.close()


async def test_feedback_is_given_once_per_workflow_and_agent(
    database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    store, epoch = await open_with_owner(database.service_url)
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
