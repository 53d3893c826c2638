"""Invoices over real payments: each payment on one of them at most, whatever else overlaps it.

Reference: money.md (Invoices); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from core.errors import ErrorCode, ServiceError
from ledger.commands import Outcome, OutcomeStatus
from ledger.features import invoices as invoice_content
from ledger.features.invoices import (
    CreateInvoice,
    SettleInvoice,
    invoice_row,
    invoice_rows,
    invoice_settled_key,
    is_same,
    line_rows,
    standing_invoice,
    with_content,
)
from ledger.reads.expensive_reads import READS_OF_ONE_MAX
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, decide, refused
from tests.ledger.making import (
    AT,
    CREDIT,
    PAYER,
    Flow,
    NextWriter,
    new_id,
    new_key,
)
from tests.platform.waiting import until

LATER = AT + 1_000


# The reader of the running test's ledger: content is added up outside the writer.
_open: list[LedgerReader] = []


@pytest.fixture(autouse=True)
async def reader(database: Database) -> AsyncIterator[LedgerReader]:
    """A reader of the test's ledger."""
    async with LedgerReader(database.service_url, pool_size=2) as opened:
        _open.append(opened)
        yield opened
        _open.clear()


def of_period(start_ms: int = AT, end_ms: int = LATER, **changes: Any) -> CreateInvoice:
    """Ask for an invoice over a period."""
    fields: dict[str, Any] = {
        "key": new_key(),
        "actor_did": PAYER,
        "invoice_id": new_id(),
        "payer_did": PAYER,
        "period_start_ms": start_ms,
        "period_end_ms": end_ms,
        "workflow_id": None,
    }
    return CreateInvoice(**{**fields, **changes})


def of_workflow(workflow_id: str, **changes: Any) -> CreateInvoice:
    """Ask for an invoice over a workflow."""
    return of_period(0, 0, workflow_id=workflow_id, **changes)


def settle(invoice_id: str, status: Any) -> SettleInvoice:
    """Pay or void an invoice."""
    key = invoice_settled_key(invoice_id)
    return SettleInvoice(
        key=key, request_hash=b"", actor_did="did:a", invoice_id=invoice_id, status=status
    )


async def refund(store: LedgerStore, flow: Flow, micro: int) -> None:
    """Let a dispute of the payer bring something back."""
    dispute = about(flow, respondent_did=None)
    _, outcome = await store.commit([dispute, decide(dispute, micro, "resolved_split")], LATER)
    assert outcome.result["refundedMicro"] == micro, outcome


async def one(store: LedgerStore, command: Any, at_ms: int = LATER) -> Outcome:
    """Commit one command; add up before what an invoice is made of."""
    if isinstance(command, CreateInvoice):
        period = (command.period_start_ms, command.period_end_ms)
        row = await standing_invoice(_open[0], command.payer_did, period, command.workflow_id)
        if row is not None and is_same(row, period, command.workflow_id):
            return Outcome(OutcomeStatus.APPLIED, {"invoiceId": row["id"], "isNew": False})
        try:
            command = await with_content(_open[0], command)
        except ServiceError as refusal:
            return Outcome(OutcomeStatus.REJECTED, {}, refusal.code, refusal.detail)
    (outcome,) = await store.commit([command], at_ms)
    return outcome


async def test_invoice_adds_up_gross_payments_of_its_period(
    store: LedgerStore, auditor: Auditor, reader: LedgerReader
) -> None:
    flow, other = Flow(), Flow()
    await store.commit([flow.publish(), flow.pay(3 * CREDIT), other.publish()], AT)
    await store.commit([flow.pay(2 * CREDIT, node="b"), flow.end()], AT + 10)
    await store.commit([other.pay(CREDIT)], LATER)  # after the period
    outcome = await one(store, of_period())
    assert outcome.result["isNew"] is True
    row = await invoice_row(reader, outcome.result["invoiceId"])
    assert row is not None
    # 5 credits = 500 cents; 0.3 % of them = 1.5, half up.
    shown = {name: row[name] for name in ("subtotal_cents", "protocol_fee_cents", "total_cents")}
    assert shown == {"subtotal_cents": 500, "protocol_fee_cents": 2, "total_cents": 502}
    assert (row["status"], row["subtotal_micro"]) == ("pending", 5 * CREDIT)
    lines = await line_rows(reader, row["id"])
    assert [(line["node_id"], line["amount_micro"]) for line in lines] == [
        ("a", 3 * CREDIT),
        ("b", 2 * CREDIT),
    ]
    assert auditor.one("SELECT count(*) FROM event WHERE event_type = 'invoice.issued'") == 1


async def test_case_33_an_overlapping_period_is_refused_and_a_touching_one_is_not(
    store: LedgerStore,
) -> None:
    await one(store, of_period(AT, AT + 100))
    for start, end in ((AT + 99, AT + 200), (AT - 100, AT + 1), (AT + 1, AT + 99), (AT, AT + 101)):
        refused(await one(store, of_period(start, end)), ErrorCode.CONFLICT)
    assert (await one(store, of_period(AT + 100, AT + 200))).result["isNew"]
    assert (await one(store, of_period(AT - 100, AT))).result["isNew"]
    somebody = of_period(AT + 50, AT + 60, payer_did="did:test:other")
    assert (await one(store, somebody)).result["isNew"], "another payer's periods are their own"


async def test_case_33_a_period_that_has_not_passed_is_refused(store: LedgerStore) -> None:
    refused(await one(store, of_period(AT, LATER + 1)), ErrorCode.INVALID_REQUEST)
    assert (await one(store, of_period(AT, LATER))).result["isNew"]


async def test_case_33a_content_that_something_has_come_to_since_is_read_again(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor, reader: LedgerReader
) -> None:
    """What is added up outside the writer is committed only if it would be the same inside."""
    flow = Flow()
    await store.commit([flow.publish(), flow.pay(CREDIT)], AT)
    before = await with_content(reader, of_period())
    await store.commit([flow.pay(CREDIT, node="b"), flow.end()], AT + 1)
    refused(await one_as_read(store, before), ErrorCode.OVERLOADED)
    assert auditor.one("SELECT count(*) FROM command WHERE id = %s", before.key) == 0
    issued = await one(store, before)
    row = await invoice_row(reader, issued.result["invoiceId"])
    assert row is not None
    assert row["subtotal_cents"] == 200
    # Another invoice of this payer takes lines that were free as they were read.
    await one(store, settle(row["id"], "void"))
    by_period = await with_content(reader, of_period())
    by_workflow = await one(store, of_workflow(flow.id))
    assert by_workflow.result["isNew"]
    refused(await one_as_read(store, by_period), ErrorCode.OVERLOADED)
    # And so does one that was issued before this writer began.
    store = await next_writer()
    refused(await one_as_read(store, by_period), ErrorCode.OVERLOADED)
    # A refund of the workflow changes what its invoice would be.
    await one(store, settle(by_workflow.result["invoiceId"], "void"))
    by_workflow_again = await with_content(reader, of_workflow(flow.id))
    await refund(store, flow, CREDIT)
    refused(await one_as_read(store, by_workflow_again), ErrorCode.OVERLOADED)


async def one_as_read(store: LedgerStore, command: CreateInvoice) -> Outcome:
    """Commit an invoice with the content that it has."""
    (outcome,) = await store.commit([command], LATER)
    return outcome


async def test_adding_up_takes_turns_and_an_overlap_needs_none(
    store: LedgerStore, reader: LedgerReader
) -> None:
    await one(store, of_period(AT, AT + 100))
    others = "did:test:other"
    async with asyncio.timeout(30), reader.turns.turn("did:test:busy"):
        assert await standing_invoice(reader, PAYER, (AT + 99, AT + 200), None) is not None
        assert await standing_invoice(reader, PAYER, (AT + 100, AT + 200), None) is None
        asked = [
            asyncio.create_task(with_content(reader, of_period(AT + 100, AT + 200)))
            for _ in range(READS_OF_ONE_MAX + 1)
        ]
        (refused_one,), waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert isinstance(refused_one.exception(), ServiceError), "so many wait of one payer"
        another = asyncio.create_task(
            with_content(reader, of_period(AT, AT + 100, payer_did=others))
        )
        waiting.add(another)
        await until(lambda: f"reads={len(waiting) + 1}>" in repr(reader.turns))
    added_up = await asyncio.gather(*waiting)
    assert Counter(command.payer_did for command in added_up) == {PAYER: 5, others: 1}


async def test_invoice_has_a_bounded_number_of_lines(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invoice_content, "LINES_MAX", 2)
    flow = Flow()
    await store.commit([flow.publish(), *(flow.pay(CREDIT, node=name) for name in "ab")], AT)
    more = [flow.pay(CREDIT, node=name) for name in "cde"]
    await store.commit([*more, flow.end()], AT + 1)
    refused(await one(store, of_period(AT + 1, AT + 2)), ErrorCode.INVALID_REQUEST)
    assert (await one(store, of_period(AT, AT + 1))).result["isNew"]


async def test_invoices_are_listed_newest_first(store: LedgerStore, reader: LedgerReader) -> None:
    made = [(await one(store, of_period(AT + n, AT + n + 1))).result["invoiceId"] for n in range(3)]
    newest_first = sorted(made, reverse=True)

    async def ids(**filters: Any) -> list[str]:
        asked: dict[str, Any] = {
            "payer_did": PAYER, "status": None, "limit": 9, "offset": 0, "before_id": None,
        }  # fmt: skip
        return [row["id"] for row in await invoice_rows(reader, **{**asked, **filters})]

    assert await ids() == newest_first
    assert await ids(limit=1, before_id=newest_first[0]) == newest_first[1:2]
    assert await ids(payer_did="did:test:other") == []
    await store.commit([settle(made[1], "void")], LATER)
    assert await ids(status="void", payer_did=None) == [made[1]]
