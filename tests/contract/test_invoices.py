"""Invoices through the API. Spec: Invoice; money.md (Invoices)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
)

Json = dict[str, Any]
PATH = "/v1/invoices"


def until_now() -> Json:
    """Return a period that ends now."""
    now = datetime.now(UTC)
    return {"periodStart": (now - timedelta(hours=1)).isoformat(), "periodEnd": now.isoformat()}


def test_invoice_of_a_period_has_subtotal_fee_total_and_is_pending(
    payer: Caller, make_agent: MakeAgent
) -> None:
    payer.run(chain_of(make_agent(price_cents=167).capability, "a"))
    asked = {"payerDid": payer.did, **until_now()}
    invoice = answer(payer.http.post(PATH, json=asked))
    numbers = [invoice[n] for n in ("subtotalCents", "protocolFeeCents", "totalCents")]
    assert numbers == [167, 1, 168]
    assert (invoice["status"], invoice["payerDid"]) == ("pending", payer.did)
    again = answer(payer.http.post(PATH, json=asked))
    assert again["id"] == invoice["id"], "the same period is the same invoice"
    shown = answer(payer.http.get(f"{PATH}/{invoice['id']}"))
    (line,) = shown["lines"]
    assert (line["amountCredits"], line["nodeId"], shown["lineCount"]) == (1.67, "a", 1)
    assert [row["id"] for row in answer(payer.http.get(PATH))["invoices"]] == [invoice["id"]]


def test_overlapping_invoices_at_once_are_added_up_once(payer: Caller) -> None:
    """They come to one after another, and those after the first see its period."""
    now = datetime.now(UTC)

    def ask(hours: int) -> int:
        period = {
            "periodStart": (now - timedelta(hours=hours)).isoformat(),
            "periodEnd": now.isoformat(),
        }
        return payer.http.post(PATH, json={"payerDid": payer.did, **period}).status_code

    with ThreadPoolExecutor(20) as threads:
        assert sorted(threads.map(ask, range(1, 21))) == [200] + [409] * 19


def test_invoice_of_a_workflow_takes_its_payments_once(
    payer: Caller, make_agent: MakeAgent
) -> None:
    first, second = (
        payer.run(chain_of(make_agent(price_cents=100).capability, "ab")) for _ in range(2)
    )
    invoice = answer(payer.http.post(PATH, json={"workflowId": first["id"]}))
    assert (invoice["subtotalCents"], invoice["workflowId"]) == (200, first["id"])
    rest = answer(payer.http.post(PATH, json={"payerDid": payer.did, **until_now()}))
    assert rest["subtotalCents"] == 200, "what is not invoiced yet"
    again = payer.http.post(PATH, json={"workflowId": second["id"]})
    refusal(again, 409, "CONFLICT")


def test_a_running_workflow_is_not_invoiced(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True)
    workflow_id = answer(payer.publish(chain_of(agent.capability)))["workflowId"]
    refusal(payer.http.post(PATH, json={"workflowId": workflow_id}), 409, "CONFLICT")


def test_bad_periods_are_400_and_overlapping_ones_409(payer: Caller) -> None:
    now = datetime.now(UTC)
    hours = [(now - timedelta(hours=n)).isoformat() for n in range(4)]
    ahead = (now + timedelta(hours=1)).isoformat()
    for period in (
        {},
        {"periodStart": hours[1]},
        {"periodStart": "x", "periodEnd": hours[1]},
        {"periodStart": hours[1], "periodEnd": hours[1]},
        {"periodStart": hours[1], "periodEnd": hours[2]},
        {"periodStart": hours[1], "periodEnd": ahead},
        {"periodStart": "1960-01-01", "periodEnd": hours[1]},
        {"workflowId": "x"},
        {"workflowId": "0199c0de-0000-7000-8000-000000000001", "periodStart": hours[1]},
    ):
        body = {"payerDid": payer.did, **period}
        refusal(payer.http.post(PATH, json=body), 400, "INVALID_REQUEST")
    first = {"payerDid": payer.did, "periodStart": hours[3], "periodEnd": hours[1]}
    assert answer(payer.http.post(PATH, json=first))["totalCents"] == 0
    overlapping = {"payerDid": payer.did, "periodStart": hours[2], "periodEnd": hours[0]}
    refusal(payer.http.post(PATH, json=overlapping), 409, "CONFLICT")


def test_anothers_invoices_are_neither_made_nor_shown(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    record = payer.run(chain_of(make_agent().capability, "a"))
    invoice = answer(payer.http.post(PATH, json={"workflowId": record["id"]}))
    other = make_caller()
    body = {"payerDid": payer.did, **until_now()}
    refusal(other.http.post(PATH, json=body), 403, "FORBIDDEN")
    refusal(other.http.post(PATH, json={"workflowId": record["id"]}), 404, "NOT_FOUND")
    refusal(other.http.get(f"{PATH}/{invoice['id']}"), 404, "NOT_FOUND")
    refusal(other.http.get(f"{PATH}/x"), 404, "NOT_FOUND")
    assert answer(other.http.get(f"{PATH}?payerDid={payer.did}"))["invoices"] == []


def test_only_an_administrator_pays_or_voids_and_once(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    record = payer.run(chain_of(make_agent(price_cents=100).capability, "a"))
    invoice = answer(payer.http.post(PATH, json={"workflowId": record["id"]}))
    path = f"{PATH}/{invoice['id']}"
    refusal(payer.http.post(f"{path}/pay"), 403, "INSUFFICIENT_SCOPE")
    voided = answer(admin.http.post(f"{path}/void"))
    assert (voided["status"], voided["settledBy"]) == ("void", admin.did)
    refusal(admin.http.post(f"{path}/void"), 409, "CONFLICT")
    refusal(admin.http.post(f"{path}/pay"), 409, "CONFLICT")
    next_one = answer(payer.http.post(PATH, json={"workflowId": record["id"]}))
    assert next_one["id"] != invoice["id"]
    headers = {"Idempotency-Key": unique("k")}
    pay = f"{PATH}/{next_one['id']}/pay"
    assert answer(admin.http.post(pay, headers=headers))["status"] == "paid"
    again = admin.http.post(pay, headers=headers)
    assert (answer(again)["status"], again.headers["idempotency-replayed"]) == ("paid", "true")
    unknown = f"{PATH}/0199c0de-0000-7000-8000-000000000001/pay"
    refusal(admin.http.post(unknown), 404, "NOT_FOUND")
    listed = answer(admin.http.get(f"{PATH}?payerDid={payer.did}&status=void"))["invoices"]
    assert [row["id"] for row in listed] == [invoice["id"]]
