"""Rows of money.md about paying and releasing that no other file has, against the real Postgres."""

from __future__ import annotations

import pytest

from core.errors import ErrorCode
from core.workflow.events import AttemptFinished, NodeChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import OutcomeStatus
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    deposit,
    new_key,
    open_with_member,
    succeeded,
)

pytestmark = pytest.mark.anyio

OTHER = "did:test:other"


def entries(auditor: Auditor, flow: Flow) -> list[tuple[str, int]]:
    """Return what moved for a workflow."""
    query = "SELECT kind, amount FROM entry WHERE workflow_id = %s ORDER BY id"
    return auditor.connection.execute(query, (flow.id,)).fetchall()


async def test_case_04_a_payer_that_lacks_a_micro_credit_holds_nothing(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url, micro=CREDIT)
    flow = Flow(epoch, hold=CREDIT + 1)
    (refused,) = await store.commit([flow.publish()], AT)
    assert refused.error is ErrorCode.INSUFFICIENT_CREDITS
    assert auditor.balance(PAYER) == CREDIT
    assert entries(auditor, flow) == []
    for table in ("workflow", "node", "escrow"):
        assert auditor.one(f"SELECT count(*) FROM {table}") == 0, table
    await store.close()


async def test_case_05_free_work_has_an_escrow_of_0_and_no_entries(
    database: Database, auditor: Auditor
) -> None:
    """Also of a payer who has never had anything."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch, hold=0, estimate=0, payer="did:test:poor")
    (published,) = await store.commit([flow.publish()], AT)
    assert published.status is OutcomeStatus.APPLIED
    assert auditor.one("SELECT status FROM escrow WHERE amount = 0") == "held"
    paid, ended = await store.commit([flow.pay(0), flow.end()], AT)
    assert (paid.error, ended.result) == (None, {"releasedMicro": 0})
    assert auditor.one("SELECT status FROM escrow") == "released"
    assert entries(auditor, flow) == []
    await store.close()


async def test_case_08_the_last_credits_go_to_whoever_is_first_in_the_queue(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch, hold=CREDIT)
    racers = [flow.pay(CREDIT, node=node, agent=f"did:test:{node}") for node in "abc"]
    outcomes = await store.commit([flow.publish(), *racers], AT)
    assert [outcome.error is None for outcome in outcomes] == [True, True, False, False]
    assert [auditor.balance(f"did:test:{node}") for node in "abc"] == [950_000, 0, 0]
    await store.close()


async def test_case_10_only_the_successful_attempts_agent_is_paid_and_its_price(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    failed = flow.advance(
        AttemptFinished("a", 1, AGENT, "error", AT, AT + 5, error_code="AGENT_ERROR"),
        NodeChanged("a", NodeStatus.DISPATCHED, attempt=2, agent_did=OTHER, price_micro=3 * CREDIT),
    )
    _, done, paid = succeeded("a", 3 * CREDIT, agent=OTHER)
    tried = AttemptFinished("a", 2, OTHER, "success", AT, AT + 5)
    await store.commit([flow.publish(), failed, flow.advance(tried, done, paid), flow.end()], AT)
    assert (auditor.balance(AGENT), auditor.balance(OTHER)) == (0, 2_850_000)
    assert auditor.balance(PAYER) == 97 * CREDIT
    await store.close()


@pytest.mark.parametrize(
    "status", [WorkflowStatus.CANCELLED, WorkflowStatus.TIMEOUT, WorkflowStatus.FAILED]
)
async def test_case_12_what_was_paid_stays_paid_and_one_release_returns_the_rest(
    database: Database, auditor: Auditor, status: WorkflowStatus
) -> None:
    """The result that was on its way when the workflow ended is not paid."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch, hold=10 * CREDIT)
    in_flight = flow.pay(CREDIT, node="b", agent=OTHER, key="in flight")
    outcomes = await store.commit(
        [flow.publish(), flow.pay(4 * CREDIT), flow.end(status), in_flight], AT
    )
    assert outcomes[2].result == {"releasedMicro": 6 * CREDIT}
    assert outcomes[3].error is ErrorCode.ESCROW_RELEASED
    assert entries(auditor, flow) == [
        ("escrow_hold", 10 * CREDIT),
        ("node_payment", 3_800_000),
        ("protocol_fee", 200_000),
        ("escrow_release", 6 * CREDIT),
    ]
    await store.close()


async def test_case_13_a_release_happens_once_and_what_commits_first_holds(
    database: Database, auditor: Auditor
) -> None:
    """Again under its key: the first outcome. Under another: refused. A payment after it, too."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch, hold=2 * CREDIT)
    pay, end, second = flow.pay(CREDIT), flow.end(), flow.end(WorkflowStatus.CANCELLED)
    late = flow.pay(CREDIT, node="b", key=new_key())
    outcomes = await store.commit([flow.publish(), pay, end, end, second, late], AT)
    applied, repeated = OutcomeStatus.APPLIED, OutcomeStatus.REPEATED
    assert [outcome.status for outcome in outcomes[1:4]] == [applied, applied, repeated]
    assert outcomes[3].result == outcomes[2].result == {"releasedMicro": CREDIT}
    assert [one.error for one in outcomes[4:]] == [ErrorCode.ESCROW_RELEASED] * 2
    assert [kind for kind, _ in entries(auditor, flow)].count("escrow_release") == 1
    assert auditor.balance(PAYER) == 99 * CREDIT
    await store.close()


async def test_case_18_who_works_for_itself_is_paid_and_owes_the_fee(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), flow.pay(CREDIT, agent=PAYER), flow.end()], AT)
    assert auditor.balance(PAYER) == 100 * CREDIT - 50_000
    assert auditor.one("SELECT balance FROM account WHERE address = 'fee'") == 50_000
    await store.close()


async def test_case_31_a_deposit_of_nothing_or_less_is_refused(
    database: Database, auditor: Auditor
) -> None:
    store, _ = await open_with_member(database.service_url)
    outcomes = await store.commit([deposit(0), deposit(-1), deposit(1), deposit(1)], AT)
    assert [one.error for one in outcomes[:2]] == [ErrorCode.INVALID_REQUEST] * 2
    assert auditor.balance(PAYER) == 100 * CREDIT + 2, "without a key each one is new"
    await store.close()
