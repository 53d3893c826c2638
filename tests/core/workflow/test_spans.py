"""Spans are made of rows: of a node that succeeded, failed, was retried, verified or is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import asdict

from core.workflow.events import Verdict
from core.workflow.traces import NodeRows, Span, node_spans, trace_status, workflow_span
from core.workflow.transitions import WorkflowStatus
from ledger.features.workflows import attempt_row
from tests.core.workflow.engine import Engine

AGENTS = {"cap.x.v1": {"did:x:a": 10, "did:x:b": 10}, "cap.check.v1": {"did:x:v": 5}}
NODE = {"capabilityId": "cap.x.v1"}
VERIFIED = {**NODE, "requiresVerification": True, "verifierCapabilityId": "cap.check.v1"}
ATTEMPT = dict.fromkeys(("queued_ms", "outcome"))
PAID_AFTER_MS = 7


def engine_of(node: dict[str, Any]) -> Engine:
    engine = Engine({"nodes": {"a": node}}, AGENTS).accept()
    engine.at_ms += 3  # until its request is sent
    return engine


def spans_of(engine: Engine, node: str = "a") -> list[Span]:
    """Return the spans of a workflow of one node, each checked beside the others."""
    row = {**asdict(engine.rows[node]), "name": node, "workflow_id": "wf"}
    attempts = [ATTEMPT | attempt_row("wf", one) for one in engine.history]
    at_ms = engine.at_ms + 5 + PAID_AFTER_MS
    payments = [{"node_id": line, "created_ms": at_ms} for line in engine.payments]
    whole = workflow_span(
        {
            "id": "wf",
            "traceparent": None,
            "created_ms": 1_000_000,
            "completed_ms": None,
            "status": engine.status,
        }
    )
    spans = [whole, *node_spans(NodeRows(row, attempts, payments))]
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    assert whole.parent_span_id is None
    for span in spans[1:]:
        assert span.parent_span_id is not None
        assert span.start_time_ms >= by_id[span.parent_span_id].start_time_ms
        assert span.end_time_ms is None or span.end_time_ms >= span.start_time_ms
    return spans


def told(engine: Engine) -> list[tuple[str, int | None, str, int, int | None]]:
    """Return of each span but the workflow's what it is, and when since the publish."""
    return [
        (
            span.operation_name,
            span.attempt,
            span.status,
            span.start_time_ms - 1_000_000,
            None if span.end_time_ms is None else span.end_time_ms - 1_000_000,
        )
        for span in spans_of(engine)[1:]
    ]


def test_an_attempt_waits_is_sent_and_is_paid() -> None:
    engine = engine_of(NODE)
    engine.succeed("a")
    assert told(engine) == [
        ("node", None, "ok", 0, 8),
        ("attempt", 1, "ok", 0, 8),
        ("queue", 1, "unset", 0, 3),
        ("dispatch", 1, "ok", 3, 8),
        ("settlement", 1, "ok", 8, 15),
    ]


def test_a_verification_is_a_part_of_its_node_and_is_paid_apart() -> None:
    engine = engine_of(VERIFIED)
    engine.succeed("a")
    engine.at_ms += 20
    engine.judge("a", approved=True)
    names = [span[:3] for span in told(engine)]
    assert names == [
        ("node", None, "ok"),
        ("attempt", 1, "ok"),
        ("queue", 1, "unset"),
        ("dispatch", 1, "ok"),
        ("verification", 1, "ok"),
        ("queue", 1, "unset"),
        ("dispatch", 1, "ok"),
        ("settlement", 1, "ok"),
        ("settlement", 1, "ok"),
    ]
    agents = [span.agent_did for span in spans_of(engine) if span.operation_name == "settlement"]
    assert sorted(map(str, agents)) == ["did:x:a", "did:x:v"]


def test_a_retry_is_an_attempt_of_its_own_and_a_failure_an_error() -> None:
    engine = engine_of(NODE)
    engine.fail("a")
    engine.wait_retry("a")
    engine.fail("a", Verdict.FINAL)
    assert [span[:3] for span in told(engine)] == [
        ("node", None, "error"),
        ("attempt", 1, "error"),
        ("queue", 1, "unset"),
        ("dispatch", 1, "error"),
        ("attempt", 2, "error"),
        ("queue", 2, "unset"),
        ("dispatch", 2, "error"),
    ]


def test_an_open_attempt_has_no_end_and_shows_its_dispatch_once_it_is_accepted() -> None:
    engine = engine_of(NODE)
    assert told(engine) == [("node", None, "unset", 0, None), ("attempt", 1, "unset", 0, None)]
    engine.accept_later("a")
    assert told(engine)[2:] == [
        ("queue", 1, "unset", 0, 3),
        ("dispatch", 1, "unset", 3, None),
    ]


def test_an_open_verification_begins_with_the_result() -> None:
    engine = engine_of(VERIFIED)
    engine.succeed("a")
    assert told(engine)[-1] == ("verification", 1, "unset", 8, None)


def test_a_node_that_was_skipped_has_a_span_without_length() -> None:
    engine = Engine({"nodes": {"a": NODE, "b": {**NODE, "dependsOn": ["a"]}}}, AGENTS).accept()
    engine.fail("a", Verdict.FINAL)
    (span,) = [one for one in spans_of(engine, "b") if one.operation_name == "node"]
    assert (span.status, span.end_time_ms) == ("unset", engine.at_ms + 5)


def crash(engine: Engine) -> None:
    engine.at_ms += 10
    engine.crash()
    engine.succeed("a")


def crash_in_verification(engine: Engine) -> None:
    engine.succeed("a")
    engine.at_ms += 10
    engine.crash()
    engine.judge("a", approved=True)


def cancel(engine: Engine) -> None:
    engine.cancel()


@pytest.mark.parametrize("happens", [crash, crash_in_verification, cancel])
@pytest.mark.parametrize("node", [NODE, VERIFIED])
def test_times_are_in_order_after_a_restart_and_a_cancellation(
    happens: Callable[[Engine], None], node: dict[str, Any]
) -> None:
    if happens is crash_in_verification and node is NODE:
        return
    engine = engine_of(node)
    happens(engine)
    spans_of(engine)
    for line in engine.history:
        row = attempt_row("wf", line)
        queued_ms = row.get("queued_ms", row["started_ms"])
        assert queued_ms <= row["started_ms"] <= row["completed_ms"]


def test_what_another_machine_sent_by_an_earlier_clock_was_not_sent_before_it_was_opened() -> None:
    engine = engine_of(NODE)
    engine.at_ms -= 1_000
    engine.succeed("a")
    row = attempt_row("wf", engine.history[0])
    assert row["queued_ms"] == row["started_ms"]


@pytest.mark.parametrize(
    ("status", "shown"),
    [("success", "completed"), ("pending", "running"), ("running", "running")]
    + [(one, one) for one in ("failed", "cancelled", "timeout")],
)
def test_a_trace_has_a_status_of_its_own(status: str, shown: str) -> None:
    assert trace_status({"status": WorkflowStatus(status)}) == shown
