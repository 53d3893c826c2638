"""Typed replies: they read as the document describes them, and stay what the service sent."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from callboard import replies
from callboard.errors import StillRunning, WorkflowFailed
from callboard.replies import Workflow, successful

RECORD: dict[str, Any] = {
    "id": "w1",
    "workflowId": "w1",
    "status": "success",
    "spentCredits": 0.05,
    "nodes": {
        "a": {"status": "success", "result": {"n": 1}, "agentDid": "did:net:a"},
        "b": {"status": "skipped", "error": {"code": "UPSTREAM_FAILED"}},
    },
    "quarantine": None,
    "invented": 7,
}


def test_members_read_as_attributes_down_to_the_nodes() -> None:
    record = Workflow(RECORD)
    assert (record.id, record.status, record.spent_credits) == ("w1", "success", 0.05)
    assert record.nodes["a"].agent_did == "did:net:a"
    assert record.nodes["a"].result == {"n": 1}
    assert record.quarantine is None
    assert record.intent is None, "absent, and it may be"
    assert record.results == {"a": {"n": 1}}


def test_a_record_is_what_the_service_sent() -> None:
    record = Workflow(RECORD)
    assert record == RECORD
    assert json.loads(json.dumps(record)) == RECORD
    assert pickle.loads(pickle.dumps(record)) == record
    assert record["invented"] == 7


def test_an_unknown_or_missing_member_is_an_attribute_error() -> None:
    record: Any = Workflow({"id": "w1"})
    with pytest.raises(AttributeError, match="has no member 'stauts'"):
        _ = record.stauts
    with pytest.raises(AttributeError, match="came without 'status'"):
        _ = record.status


def test_pages_give_records_and_the_next_place() -> None:
    page = replies.WorkflowPage({"workflows": [RECORD], "limit": 1, "nextCursor": "c"})
    assert [row.id for row in page.rows] == ["w1"]
    assert page.next_place() == {"cursor": "c"}
    last = replies.WorkflowPage({"workflows": [RECORD], "limit": 2, "nextCursor": None})
    assert last.next_place() is None


def test_a_failed_workflow_names_the_node_that_failed_first() -> None:
    failed = {
        **RECORD,
        "status": "failed",
        "nodes": {
            "b": {"status": "skipped", "error": {"code": "UPSTREAM_FAILED"}},
            "a": {"status": "failed", "error": {"code": "AGENT_ERROR", "message": "out of ink"}},
        },
    }
    with pytest.raises(WorkflowFailed, match="node a: out of ink") as raised:
        successful(Workflow(failed))
    assert raised.value.code == "AGENT_ERROR"
    assert raised.value.record == failed


def test_a_cancelled_workflow_without_an_error_is_named_by_its_status() -> None:
    with pytest.raises(WorkflowFailed) as raised:
        successful(Workflow({"id": "w1", "status": "cancelled", "nodes": {}}))
    assert raised.value.code == "CANCELLED"


def test_a_workflow_that_has_not_ended_is_still_running() -> None:
    with pytest.raises(StillRunning):
        successful(Workflow({**RECORD, "status": "running"}))
