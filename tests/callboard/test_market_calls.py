"""The market through client and command line: what each verb sends, and how it ends.

Reference: money.md (Entries, Invoices, Disputes and refunds).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run


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
