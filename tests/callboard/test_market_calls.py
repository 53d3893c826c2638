"""The market through client and command line: what each verb sends, and how it ends.

Reference: money.md (Entries, Invoices, Disputes and refunds).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run


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


@pytest.mark.parametrize(
    ("verb", "plural", "target"),
    [
        (("receipt", "list", "did:net:a"), "receipts", "/v1/receipts/did:net:a?limit=50"),
        (("receipt", "workflow", "w"), "receipts", "/v1/receipts/workflow/w?limit=50"),
        (
            ("workflow", "signed-results", "w", "--all"),
            "results",
            "/v1/trust/signed-results/w?all=true&limit=50",
        ),
    ],
)
def test_receipts_and_signed_results_are_tables(
    service: ScriptedService, verb: tuple[str, ...], plural: str, target: str
) -> None:
    service.script = [Scripted(200, {plural: [{"nodeId": "node-1", "agentDid": "did:net:a"}]})]
    result = run(*verb, "--url", service.url)
    assert result.exit_code == 0, result.output
    assert "node-1" in result.stdout
    assert service.asked[0].target == target


@pytest.mark.parametrize(
    ("verb", "method", "target", "body"),
    [
        (
            ("create", "https://a.example/x", "--event", "*", "--secret", "whsec_x"),
            "POST", "/v1/webhooks",
            {"url": "https://a.example/x", "events": ["*"], "secret": "whsec_x"},
        ),
        (("update", "w", "--disable"), "PATCH", "/v1/webhooks/w", {"enabled": False}),
        (
            ("update", "w", "--new-url", "https://b.example/", "--enable"),
            "PATCH", "/v1/webhooks/w", {"url": "https://b.example/", "enabled": True},
        ),
        (("rotate", "w"), "PATCH", "/v1/webhooks/w", {"rotateSecret": True}),
        (("test", "w"), "POST", "/v1/webhooks/w/test", {}),
        (("redeliver", "w", "d"), "POST", "/v1/webhooks/w/deliveries/d/redeliver", {}),
        (("delete", "w"), "DELETE", "/v1/webhooks/w", None),
    ],
)  # fmt: skip
def test_webhooks_are_changed_by_verbs(
    service: ScriptedService, verb: tuple[str, ...], method: str, target: str, body: Any
) -> None:
    service.script = [Scripted(200, {"success": True, "id": "w"})]
    result = run("webhook", *verb, "--url", service.url)
    assert result.exit_code == 0, result.output
    (asked,) = service.asked
    assert (asked.method, asked.target, asked.body) == (method, target, body)
    assert (asked.headers.get("idempotency-key") is None) == (method == "DELETE")


@pytest.mark.parametrize(("is_valid", "code"), [(True, 0), (False, 1)])
def test_a_receipt_that_is_not_valid_ends_its_verb_with_1(
    service: ScriptedService, tmp_path: Path, is_valid: bool, code: int
) -> None:
    file, receipt = tmp_path / "receipt.json", {"receiptId": "rcpt_1"}
    file.write_text(json.dumps(receipt))
    service.script = [Scripted(200, {"valid": is_valid, "reason": None})]
    assert run("receipt", "verify", str(file), "--url", service.url).exit_code == code
    assert service.asked[0].target == "/v1/receipts/verify"
    assert service.asked[0].body == {"receipt": receipt}
