"""The market through client and command line: what each verb sends, and how it ends.

Spec: Ledger records, Invoice, Dispute.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from callboard.client import Client
from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

Json = dict[str, Any]
WITH_RATES = ("--input-rate", "0.000001", "--output-rate", "0.000002")
PER_TOKEN = {"model": "per-token", "inputRate": "0.000001", "outputRate": "0.000002"}
QUOTA = {"maxWorkflowsPerDay": 5, "maxConcurrentWorkflows": None, "maxSpendPerDayCents": 700}
DISPUTE = {
    "disputeType": "fraud",
    "description": "It is made up.",
    "workflowId": "w",
    "nodeId": "n",
    "evidence": {"a": 1},
}
PERIOD = ("--start", "2026-01-01", "--end", "2026-02-01")
VERBS: list[tuple[tuple[str, ...], str, str, Json | None]] = [
    (("price", "show", "cap.x"), "GET", "/v1/capabilities/cap.x/price", None),
    (
        ("price", "set", "cap.x", "--cents", "0"),
        "PUT",
        "/v1/capabilities/cap.x/price",
        {"price_cents": 0},
    ),
    (
        ("price", "set", "cap.x", *WITH_RATES),
        "PUT",
        "/v1/capabilities/cap.x/price",
        {"pricing": PER_TOKEN},
    ),
    (("stake", "show", "did:net:a"), "GET", "/v1/stakes/did:net:a", None),
    (("stake", "deposit", "1.5"), "POST", "/v1/stakes", {"amount": "1.5"}),
    (
        ("stake", "withdraw", "1", "--agent", "did:net:a"),
        "POST",
        "/v1/stakes/unstake",
        {"amount": "1", "agentDid": "did:net:a"},
    ),
    (
        ("stake", "slash", "did:net:a", "w", "n", "It lies."),
        "POST",
        "/v1/stakes/slash",
        {"agentDid": "did:net:a", "workflowId": "w", "nodeId": "n", "reason": "It lies."},
    ),
    (
        ("agent", "revoke", "did:net:a", "--reason", "It lies.", "--evidence", '{"n": 1}'),
        "POST",
        "/v1/trust/revoke",
        {"did": "did:net:a", "reason": "It lies.", "evidence": {"n": 1}},
    ),
    (
        ("agent", "revoke", "did:net:a", "--reason", "Away.", "--expires-at", "2030-01-01"),
        "POST",
        "/v1/trust/revoke",
        {"did": "did:net:a", "reason": "Away.", "evidence": {}, "expiresAt": "2030-01-01"},
    ),
    (
        ("agent", "collect", "did:net:a", "--amount", "1"),
        "POST",
        "/v1/agents/did:net:a/collect",
        {"amount": "1"},
    ),
    (
        ("quota", "set", "did:net:p", "--concurrent", "0"),
        "POST",
        "/v1/quotas/did:net:p",
        {**dict.fromkeys(QUOTA), "maxConcurrentWorkflows": 0},
    ),
    (("agent", "unrevoke", "did:net:a"), "DELETE", "/v1/revoked/did:net:a", None),
    (("agent", "revoked", "did:net:a"), "GET", "/v1/revoked/did:net:a", None),
    (("reputation", "show", "did:net:a"), "GET", "/v1/reputation/did:net:a", None),
    (("quota", "show", "did:net:p"), "GET", "/v1/quotas/did:net:p", None),
    (
        ("quota", "set", "did:net:p", "--workflows-per-day", "5", "--spend-per-day", "700"),
        "POST",
        "/v1/quotas/did:net:p",
        QUOTA,
    ),
    (
        ("quota", "check", "did:net:p", "--spend", "3"),
        "POST",
        "/v1/quotas/did:net:p/check",
        {"estimatedSpendCents": 3},
    ),
    (("ledger", "account", "did:net:p"), "GET", "/v1/ledger/accounts/did:net:p", None),
    (
        ("invoice", "create", *PERIOD),
        "POST",
        "/v1/invoices",
        {"periodStart": "2026-01-01", "periodEnd": "2026-02-01"},
    ),
    (("invoice", "create", "--workflow", "w"), "POST", "/v1/invoices", {"workflowId": "w"}),
    (("invoice", "show", "i"), "GET", "/v1/invoices/i", None),
    (("invoice", "pay", "i"), "POST", "/v1/invoices/i/pay", {}),
    (("invoice", "void", "i"), "POST", "/v1/invoices/i/void", {}),
    (
        ("dispute", "open", "fraud", "It is made up.", "--workflow", "w", "--node", "n",
         "--evidence", '{"a":1}'),
        "POST",
        "/v1/disputes",
        DISPUTE,
    ),
    (("dispute", "show", "d"), "GET", "/v1/disputes/d", None),
    (
        ("dispute", "resolve", "d", "resolved_split", "half", "--refund", "0.5"),
        "POST",
        "/v1/disputes/d/resolve",
        {"status": "resolved_split", "resolution": "half", "creditsRefunded": "0.5"},
    ),
    (
        ("feedback", "give", "w", "did:net:a", "1", "--scale", "5"),
        "POST",
        "/v1/workflows/w/feedback",
        {"agentDid": "did:net:a", "rating": 1.0, "scale": 5},
    ),
    (("task", "show", "t"), "GET", "/v1/tasks/t", None),
    (
        ("task", "bid", "t", "0.25", "--node", "n", "--eta-ms", "10", "--agent", "did:net:a"),
        "POST",
        "/v1/tasks/t/bid",
        {"bidAmount": "0.25", "nodeId": "n", "etaMs": 10, "agentDid": "did:net:a"},
    ),
    (("auction", "show", "w", "n"), "GET", "/v1/auctions/w/n", None),
    (
        ("bid", "place", "w", "n", "0.25", "--eta-ms", "10", "--stake-offered", "1"),
        "POST",
        "/v1/auctions/w/n/bids",
        {"bidAmount": "0.25", "etaMs": 10, "stakeOffered": "1"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "method", "target", "body"), VERBS, ids=lambda value: str(value)[:40]
)
def test_verb_sends_what_its_operation_takes(
    service: ScriptedService, arguments: tuple[str, ...], method: str, target: str, body: Json
) -> None:
    reply = {"id": "row-1", "amount": 1.50}
    service.script = [Scripted(200, reply)]
    result = run(*arguments, "--url", service.url, "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, reply)
    (asked,) = service.asked
    assert (asked.method, asked.target, asked.body) == (method, target, body)
    assert ("idempotency-key" in asked.headers) is (method == "POST")


@pytest.mark.parametrize("plural", ["invoice", "dispute"])
def test_lists_are_tables_and_pages(service: ScriptedService, plural: str) -> None:
    service.script = [Scripted(200, {f"{plural}s": [{"id": "row-1", "status": "paid"}]})]
    result = run(plural, "list", "--status", "paid", "--cursor", "c", "--url", service.url)
    assert result.exit_code == 0
    assert "row-1" in result.stdout
    assert service.asked[0].target == f"/v1/{plural}s?status=paid&limit=50&cursor=c"


@pytest.mark.parametrize(
    "arguments",
    [
        ("price", "set", "cap.x"),
        ("price", "set", "cap.x", "--cents", "1", *WITH_RATES),
        ("price", "set", "cap.x", "--input-rate", "1"),
        ("invoice", "create"),
        ("invoice", "create", "--start", "2026-01-01"),
        ("invoice", "create", "--workflow", "w", *PERIOD),
        ("dispute", "open", "fraud", "It is made up.", "--evidence", "[]"),
        ("dispute", "open", "fraud", "It is made up.", "--evidence", "{"),
        ("feedback", "give", "w", "did:net:a", "6"),
    ],
)
def test_wrong_usage_exits_2_and_asks_nobody(
    service: ScriptedService, arguments: tuple[str, ...]
) -> None:
    result = run(*arguments, "--url", service.url)
    assert (result.exit_code, service.asked) == (2, [])


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("cancelled", 1)])
def test_a_task_that_is_waited_for_exits_as_it_ended(
    service: ScriptedService, status: str, code: int
) -> None:
    published = {"taskId": "t", "workflowId": "w", "status": "pending"}
    over = {"id": "w", "status": "success" if status == "completed" else status}
    service.script = [
        Scripted(200, published), Scripted(200, over), Scripted(200, {"id": "t", "status": status}),
    ]  # fmt: skip
    result = run("task", "publish", "[cap.x] do", "--budget", "2", "--wait", "--url", service.url)
    assert result.exit_code == code
    assert f"status  {status}" in result.stdout
    assert service.asked[0].body == {"description": "[cap.x] do", "budget": "2"}
    assert service.asked[2].target == "/v1/tasks/t"


def test_a_task_can_be_auctioned(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"taskId": "t", "workflowId": "w", "status": "pending"})]
    options = ("--selection", "auction", "--auction-window-ms", "500", "--url", service.url)
    assert run("task", "publish", "[cap.x] do", *options).exit_code == 0
    asked = service.asked[0].body
    assert asked == {"description": "[cap.x] do", "selection": "auction", "auctionWindowMs": 500}


def test_a_refusal_of_the_market_exits_3(service: ScriptedService) -> None:
    service.script = [Scripted(409, {"code": "STAKE_LOCKED", "detail": "locked"})]
    result = run("stake", "withdraw", "1", "--url", service.url)
    assert (result.exit_code, result.stderr) == (3, "callboard: STAKE_LOCKED: locked\n")


def test_a_write_is_sent_again_under_its_key_when_no_answer_comes(
    service: ScriptedService,
) -> None:
    busy = Scripted(503, {"code": "OVERLOADED"}, {"retry-after": "0"})
    service.script = [busy, Scripted(200, {"id": "d"})]
    with Client(service.url) as client:
        assert client.open_dispute("other", "It is made up.") == {"id": "d"}
    first, second = service.asked
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
