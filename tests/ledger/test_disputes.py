"""Disputes: what comes back, from whom, how often.

Spec: Settlement rules 10, Dispute; money.md (Disputes and refunds, Settlement); decision
refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from core.workflow.transitions import WorkflowStatus
from ledger.accounts.account_commands import CollectCredits
from ledger.commands import OutcomeStatus
from ledger.disputes.dispute_reads import dispute_row, dispute_rows
from ledger.reads.reader import LedgerReader
from ledger.writer.state_cache import stake_address, stake_locked_address
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, decide, paid_workflow, refused, resolve, stake
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    api_key,
    card,
    new_id,
    new_key,
    open_with_member,
)

pytestmark = pytest.mark.anyio


OTHER_AGENT = "did:test:other-agent"


@pytest.fixture
def auditor(database: Database) -> Iterator[Auditor]:
    """Checks the books during and after the test."""
    opened = Auditor(database.superuser_url)
    yield opened
    opened.check()
    opened.close()


async def test_case_15_a_refund_takes_the_agents_share_and_the_fees_in_proportion(
    database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, 2 * CREDIT)
    before = auditor.balance(PAYER)
    dispute = about(flow)
    outcome = await resolve(store, dispute, CREDIT)
    assert outcome.result["refundedMicro"] == CREDIT
    assert auditor.balance(PAYER) == before + CREDIT
    assert auditor.balance(AGENT) == 950_000, "the agent has 95 % of the credit that stays paid"
    assert auditor.one("SELECT balance FROM account WHERE address = 'fee'") == 50_000
    kinds = auditor.connection.execute(
        "SELECT kind, amount, node_id FROM entry WHERE workflow_id = %s AND kind LIKE '%%refund'"
        " ORDER BY id",
        (flow.id,),
    ).fetchall()
    assert kinds == [("refund", 950_000, "a"), ("fee_refund", 50_000, "a")]
    row = await dispute_row(reader, dispute.dispute_id)
    assert row is not None
    assert (row["status"], row["refunded_micro"], row["short_micro"]) == (
        "resolved_complainant",
        CREDIT,
        0,
    )
    await store.close()


async def test_case_15_a_short_wallet_is_helped_by_locked_then_free_stake(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, 2 * CREDIT)  # the agent gets 1.9
    await stake(database, store, free=CREDIT, locked=600_000)  # and keeps 0.3 in its wallet
    store, epoch = await open_with_member(database.service_url, micro=1)
    outcome = await resolve(store, about(flow), CREDIT)  # 0.95 of it from the agent
    assert outcome.result["refundedMicro"] == CREDIT
    assert auditor.balance(AGENT) == 0
    by_address = "SELECT balance FROM account WHERE address = %s"
    assert auditor.one(by_address, stake_locked_address(AGENT)) == 0
    assert auditor.one(by_address, stake_address(AGENT)) == CREDIT - 50_000
    assert auditor.one("SELECT updated_ms FROM stake") == AT + 50
    await store.close()


async def test_case_15_what_nobody_has_is_short_and_said(
    database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, 2 * CREDIT)
    # The agent spends 1.5 of its 1.9 credits.
    spent = Flow(epoch, payer=AGENT, hold=1_500_000)
    away = spent.pay(1_500_000, agent=OTHER_AGENT)
    await store.commit([spent.publish(), away, spent.end()], AT)
    dispute = about(flow)
    outcome = await resolve(store, dispute, CREDIT)
    assert (outcome.result["refundedMicro"], outcome.result["shortMicro"]) == (450_000, 550_000)
    assert auditor.balance(AGENT) == 0
    row = await dispute_row(reader, dispute.dispute_id)
    assert row is not None
    stored = tuple(row[n] for n in ("refund_asked_micro", "refunded_micro", "short_micro"))
    assert stored == (CREDIT, 450_000, 550_000)
    await store.close()


async def test_case_15_refunds_together_never_exceed_the_payment(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, 2 * CREDIT)
    refused(await resolve(store, about(flow), 2 * CREDIT + 1), ErrorCode.INVALID_REQUEST)
    assert (await resolve(store, about(flow), 2 * CREDIT - 1)).result["refundedMicro"]
    refused(await resolve(store, about(flow), 2), ErrorCode.INVALID_REQUEST)
    assert (await resolve(store, about(flow), 1)).result["refundedMicro"] == 1
    assert auditor.balance(AGENT) == 0
    assert auditor.balance(PAYER) == 100 * CREDIT
    await store.close()


async def test_a_refund_is_capped_by_the_disputed_node_and_agent(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    first = flow.pay(CREDIT, node="a")
    second = flow.pay(3 * CREDIT, node="b", agent=OTHER_AGENT)
    await store.commit([flow.publish(), first, second, flow.end()], AT)
    by_agent = about(flow, respondent_did=AGENT)
    refused(await resolve(store, by_agent, CREDIT + 1), ErrorCode.INVALID_REQUEST)
    by_node = about(flow, respondent_did=OTHER_AGENT, node_id="b")
    refused(await resolve(store, by_node, 3 * CREDIT + 1), ErrorCode.INVALID_REQUEST)
    not_its_node = about(flow, respondent_did=AGENT, node_id="b")
    refused(await resolve(store, not_its_node, 1), ErrorCode.INVALID_REQUEST)
    whole = await resolve(store, about(flow, respondent_did=None), 2 * CREDIT)
    assert whole.result["refundedMicro"] == 2 * CREDIT
    assert auditor.balance(AGENT) == 475_000, "each gives back in proportion"
    assert auditor.balance(OTHER_AGENT) == 3 * 475_000
    await store.close()


async def test_a_second_resolve_is_refused_and_changes_nothing(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, 2 * CREDIT)
    dispute = about(flow)
    first, second = decide(dispute, CREDIT), decide(dispute, CREDIT)
    outcomes = await store.commit([dispute, first, second, first], AT)
    assert outcomes[1].status is OutcomeStatus.APPLIED
    refused(outcomes[2], ErrorCode.CONFLICT)
    assert outcomes[3].result == outcomes[1].result, "the same command again is no second resolve"
    assert auditor.one("SELECT count(*) FROM entry WHERE kind = 'refund'") == 1
    unknown = decide(about(flow))
    refused((await store.commit([unknown], AT))[0], ErrorCode.NOT_FOUND)
    await store.close()


@pytest.mark.parametrize(
    ("complainant", "status", "is_allowed"),
    [
        (PAYER, "resolved_complainant", True),
        (PAYER, "resolved_split", True),
        (PAYER, "resolved_respondent", False),
        (PAYER, "dismissed", False),
        (AGENT, "resolved_respondent", True),
        (AGENT, "resolved_split", True),
        (AGENT, "resolved_complainant", False),
    ],
)
async def test_a_refund_goes_with_decisions_for_the_payer_alone(
    database: Database, auditor: Auditor, complainant: str, status: str, is_allowed: bool
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, 2 * CREDIT)
    respondent = AGENT if complainant == PAYER else PAYER
    dispute = about(flow, complainant_did=complainant, respondent_did=respondent)
    outcome = await resolve(store, dispute, CREDIT, status=status)
    if is_allowed:
        assert outcome.result["refundedMicro"] == CREDIT
    else:
        refused(outcome, ErrorCode.INVALID_REQUEST)
        assert auditor.balance(AGENT) == 1_900_000
        again = (await store.commit([decide(dispute, 0, status)], AT))[0]
        assert again.status is OutcomeStatus.APPLIED, "a refused decision leaves the dispute open"
    await store.close()


async def test_case_18_what_a_payer_paid_to_itself_cannot_be_refunded(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, CREDIT, agent=PAYER)
    dispute = about(flow, respondent_did=None)
    refused(await resolve(store, dispute, 1), ErrorCode.INVALID_REQUEST)
    await store.close()


async def test_case_40_a_dispute_while_running_freezes_nothing(
    database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    dispute = about(flow)
    outcomes = await store.commit([flow.publish(), dispute, flow.pay(CREDIT), flow.end()], AT)
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.APPLIED}
    found = await reader.workflow(flow.id)
    assert found is not None
    assert found.status is WorkflowStatus.SUCCESS
    row = await dispute_row(reader, dispute.dispute_id)
    assert row is not None
    assert (row["status"], row["evidence"]) == ("open", {"got": 1.5, "é": []})
    await store.close()


async def test_a_dispute_about_no_workflow_is_decided_without_money(
    database: Database, auditor: Auditor
) -> None:
    store, _ = await open_with_member(database.service_url)
    refused(await resolve(store, about(None, dispute_type="fraud"), 1), ErrorCode.INVALID_REQUEST)
    outcome = await resolve(store, about(None, dispute_type="fraud"))
    assert (outcome.result["refundedMicro"], outcome.result["slashedMicro"]) == (0, 0)
    await store.close()


async def test_disputes_are_listed_for_their_parties(
    database: Database, reader: LedgerReader
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    mine, theirs = about(flow), about(None, complainant_did="did:x", respondent_did="did:y")
    await store.commit([flow.publish(), mine, theirs], AT)

    async def ids(**filters: Any) -> set[str]:
        asked: dict[str, Any] = {
            "party_did": None, "status": None, "workflow_id": None, "limit": 9, "offset": 0,
            "before_id": None,
        }  # fmt: skip
        return {row["id"] for row in await dispute_rows(reader, **{**asked, **filters})}

    assert await ids() == {mine.dispute_id, theirs.dispute_id}
    assert await ids(party_did=AGENT) == await ids(party_did=PAYER) == {mine.dispute_id}
    assert await ids(workflow_id=flow.id) == {mine.dispute_id}
    assert await ids(status="dismissed") == set()
    await store.close()


async def test_a_dispute_that_is_opened_before_a_collect_is_planned_keeps_its_money(
    database: Database, auditor: Auditor
) -> None:
    """The collect is made before the dispute is opened, as by a request that meets it."""
    store, epoch = await open_with_member(database.service_url)
    owner = "did:test:owner"
    await store.commit([card(owner_did=owner, proof=OwnershipProof.SIGNATURE)], AT)
    await paid_workflow(store, epoch, CREDIT)
    second = await paid_workflow(store, epoch, 2 * CREDIT)
    command = CollectCredits(key=new_key(), actor_did=owner, is_admin=False, agent_did=AGENT)
    _, taken, more = await store.commit(
        [about(second), command, structs.replace(command, key=new_key())], AT + 50
    )
    assert (taken.error, taken.result["ownerDid"]) == (None, owner)
    refused(more, ErrorCode.CONFLICT)
    assert "nothing to collect: 0 are free" in (more.detail or "")
    assert (auditor.balance(owner), auditor.balance(AGENT)) == (950_000, 1_900_000)
    await store.close()


async def test_an_owner_without_a_proof_collects_nothing_of_a_did_that_has_keys(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([card(owner_did="did:test:owner")], AT)
    await paid_workflow(store, epoch, CREDIT)
    command = CollectCredits(
        key=new_key(), actor_did="did:test:owner", is_admin=False, agent_did=AGENT
    )
    _, outcome = await store.commit(
        [api_key(new_id(), bytes(32), owner_did=AGENT), command], AT + 50
    )
    refused(outcome, ErrorCode.FORBIDDEN)
    assert auditor.balance(AGENT) == 950_000
    await store.close()
