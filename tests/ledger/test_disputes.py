"""Disputes: what comes back, from whom, how often.

Reference: money.md (Disputes and refunds, Settlement); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from msgspec import structs

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from core.workflow.transitions import WorkflowStatus
from ledger.commands import OutcomeStatus
from ledger.features.accounts import CollectCredits, wallet_entries
from ledger.features.disputes import dispute_row
from ledger.features.workflow_reads import workflow_records
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, paid_workflow, refused, resolve
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
)


async def test_case_40_a_dispute_while_running_freezes_nothing(
    store: LedgerStore, reader: LedgerReader
) -> None:
    flow = Flow()
    dispute = about(flow)
    outcomes = await store.commit([flow.publish(), dispute, flow.pay(CREDIT), flow.end()], AT)
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.APPLIED}
    (found,) = await workflow_records(reader, [flow.id], bytes_max=0)
    assert found is not None
    assert found.status is WorkflowStatus.SUCCESS
    row = await dispute_row(reader, dispute.dispute_id)
    assert row is not None
    assert (row["status"], row["evidence"]) == ("open", {"got": 1.5, "é": []})


async def test_a_dispute_about_no_workflow_is_decided_without_money(store: LedgerStore) -> None:
    refused(await resolve(store, about(None, dispute_type="fraud"), 1), ErrorCode.INVALID_REQUEST)
    outcome = await resolve(store, about(None, dispute_type="fraud"))
    assert (outcome.result["refundedMicro"], outcome.result["slashedMicro"]) == (0, 0)


async def test_entries_of_a_workflow_contain_its_refunds(
    store: LedgerStore, reader: LedgerReader
) -> None:
    flow = await paid_workflow(store, CREDIT)
    await resolve(store, about(flow), CREDIT)
    await paid_workflow(store, CREDIT)
    rows = await wallet_entries(reader, PAYER, workflow_id=flow.id)
    assert [row["kind"] for row in rows] == [
        "fee_refund", "refund", "escrow_release", "protocol_fee", "node_payment", "escrow_hold",
    ]  # fmt: skip
    page = await wallet_entries(
        reader, PAYER, workflow_id=flow.id, limit=2, before_id=rows[1]["id"]
    )
    assert page == rows[2:4]


async def test_a_dispute_that_is_opened_before_a_collect_is_planned_keeps_its_money(
    store: LedgerStore, auditor: Auditor
) -> None:
    """The collect is made before the dispute is opened, as by a request that meets it."""
    owner = "did:test:owner"
    await store.commit([card(owner_did=owner, proof=OwnershipProof.SIGNATURE)], AT)
    await paid_workflow(store, CREDIT)
    second = await paid_workflow(store, 2 * CREDIT)
    command = CollectCredits(key=new_key(), actor_did=owner, is_admin=False, agent_did=AGENT)
    _, taken, more = await store.commit(
        [about(second), command, structs.replace(command, key=new_key())], AT + 50
    )
    assert (taken.error, taken.result["ownerDid"]) == (None, owner)
    refused(more, ErrorCode.CONFLICT)
    assert "nothing to collect: 0 are free" in (more.detail or "")
    assert (auditor.balance(owner), auditor.balance(AGENT)) == (950_000, 1_900_000)


async def test_an_owner_without_a_proof_collects_nothing_of_a_did_that_has_keys(
    store: LedgerStore, auditor: Auditor
) -> None:
    await store.commit([card(owner_did="did:test:owner")], AT)
    await paid_workflow(store, CREDIT)
    command = CollectCredits(
        key=new_key(), actor_did="did:test:owner", is_admin=False, agent_did=AGENT
    )
    _, outcome = await store.commit(
        [api_key(new_id(), bytes(32), owner_did=AGENT), command], AT + 50
    )
    refused(outcome, ErrorCode.FORBIDDEN)
    assert auditor.balance(AGENT) == 950_000
