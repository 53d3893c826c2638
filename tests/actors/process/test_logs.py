"""Log lines about a workflow carry its id. Reference: operations.md."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from actors.process.startup import JsonLine

WORKFLOW = "0198c0de-0000-7000-8000-000000000001"
OTHER = "0198c0de-0000-7000-8000-000000000002"


def line(message: str, *arguments: object) -> dict[str, Any]:
    record = logging.LogRecord("callboard.x", logging.INFO, "x.py", 1, message, arguments, None)
    written: dict[str, Any] = json.loads(JsonLine().format(record))
    return written


def test_a_line_about_a_workflow_has_its_id() -> None:
    written = line("step refused workflow=%s outcome=%s", WORKFLOW, "x")
    assert written["event"] == f"step refused workflow={WORKFLOW} outcome=x"
    assert written["workflowId"] == WORKFLOW
    assert written["traceId"] == WORKFLOW.replace("-", "")
    assert line("%s of workflow=%s", f"workflow={OTHER}", WORKFLOW)["workflowId"] == WORKFLOW


@pytest.mark.parametrize("message", ["workflow=%s", f"workflow={OTHER}", "error=%s"])
def test_words_of_others_set_no_id(message: str) -> None:
    arguments = (f"workflow={OTHER} workflow=%s",) if message == "error=%s" else ()
    assert "workflowId" not in line(message, *arguments)
