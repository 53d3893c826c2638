"""Streams of events at the client and the command line, against a service that follows a script.

Reference: features.md (Streams).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from callboard.client import AsyncClient, Client
from callboard.errors import NotFound, Unavailable
from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import RECORD, run

ENDED = Scripted(204, "")


def streamed(events: list[tuple[str, dict[str, Any]]], first: int = 1) -> Scripted:
    """Return the answer that streams an entry for each event."""
    text = f": callboard\nretry: 1000\nid: {first - 1}\n\n"
    for number, (kind, payload) in enumerate(events, first):
        entry = {"id": number, "eventType": kind, "actorDid": "did:net:a\x1b"}
        entry["payload"] = {"events": [{"type": kind, "payload": payload}]}
        text += f"id: {number}\nevent: {kind}\ndata: {json.dumps(entry)}\n\n:\n\n"
    return Scripted(200, text, {"Content-Type": "text/event-stream"})


def connected(service: ScriptedService) -> list[tuple[str, str | None]]:
    """Return the target of each request, and the event after which it asks for more."""
    return [(one.target, one.headers.get("last-event-id")) for one in service.asked]


def test_a_stream_goes_on_after_its_last_event_until_there_is_nothing_more(
    service: ScriptedService,
) -> None:
    told: list[tuple[str, dict[str, Any]]] = [("node.succeeded", {}), ("node.failed", {})]
    whole = streamed(told)
    cut = Scripted(200, whole.body[:-60], whole.headers, is_cut=True)
    busy = Scripted(503, {"code": "OVERLOADED"}, {"Retry-After": "0"})
    service.script = [cut, busy, streamed(told[1:], 2), streamed([], 3), ENDED]
    with Client(service.url, "k") as client:
        assert [entry.id for entry in client.stream("w1")] == [1, 2]
    assert connected(service) == [
        ("/v1/workflows/w1/stream", last) for last in (None, "1", "1", "2", "2")
    ]
    assert {one.headers["accept"] for one in service.asked} == {"text/event-stream"}


def test_events_that_come_before_the_first_one_is_read_are_not_lost(
    service: ScriptedService,
) -> None:
    service.script = [streamed([], 41), streamed([("node.failed", {})], 41)]
    with Client(service.url, "k") as client:
        assert next(client.events(event_type="node.failed")).id == 41
    target = "/v1/events/stream?eventType=node.failed"
    assert connected(service) == [(target, None), (target, "40")]


def test_a_refusal_ends_a_stream_and_a_service_that_is_away_is_asked_a_few_times(
    service: ScriptedService,
) -> None:
    with Client(service.url, "k", attempts_max=2) as client:
        service.script = [Scripted(404, {"code": "NOT_FOUND", "detail": "none"})]
        with pytest.raises(NotFound, match="none"):
            next(client.stream("w1"))
        service.script = [Scripted(503, "busy"), Scripted(503, "busy")]
        with pytest.raises(Unavailable):
            next(client.stream("w1"))
        lost = Scripted(500, {"code": "INTERNAL_ERROR", "detail": "a replica has ended"})
        service.script = [lost, streamed([("node.failed", {})]), ENDED]
        assert [entry.id for entry in client.stream("w1")] == [1]
        service.script = [lost, lost]
        with pytest.raises(Unavailable, match="a replica has ended"):
            next(client.stream("w1"))
    assert len(service.asked) == 8


async def test_the_asynchronous_client_does_the_same(service: ScriptedService) -> None:
    told: list[tuple[str, dict[str, Any]]] = [("node.succeeded", {})]
    service.script = [streamed(told, 5), Scripted(503, "busy"), streamed(told, 6), ENDED]
    async with AsyncClient(service.url, "k") as client:
        assert [entry.id async for entry in client.stream("w1", last_event_id=4)] == [5, 6]
    assert [last for _, last in connected(service)] == ["4", "5", "5", "6"]


def test_watch_reads_no_record_for_what_the_last_one_has(service: ScriptedService) -> None:
    ended = {"a": {"status": "success", "completedAt": "T"}, "b": {"status": "running"}}
    before = {**RECORD, "status": "running", "nodes": ended}
    told = [("node.succeeded", {"nodeId": "a"}), ("payment.settled", {"nodeId": "a"})]
    service.script = [
        Scripted(200, before),
        streamed(told),
        Scripted(204, ""),
        Scripted(200, RECORD),
    ]
    assert "w1 success" in run("workflow", "watch", "w1", "--url", service.url).stdout
    stream = "/v1/workflows/w1/stream"
    assert [one.target for one in service.asked][1:] == [stream, stream, "/v1/workflows/w1"]
    assert [one.headers.get("last-event-id") for one in service.asked[1:3]] == [None, "2"]


def test_audit_follow_prints_entries_of_one_connection_after_the_other(
    service: ScriptedService,
) -> None:
    told = [("node.succeeded", {}), ("node.failed", {})]
    service.script = [
        streamed(told, 7),
        streamed(told[:1], 9),
        Scripted(403, {"code": "FORBIDDEN"}),
    ]
    options = ("--event-type", "node.succeeded,node.failed", "--workflow", "w", "--after", "6")
    result = run("audit", "follow", *options, "--url", service.url)
    assert result.exit_code == 3
    assert [line.split("  ")[:4] for line in result.stdout.splitlines()] == [
        ["7", "-", "node.succeeded", "did:net:a"],
        ["8", "-", "node.failed", "did:net:a"],
        ["9", "-", "node.succeeded", "did:net:a"],
    ]
    target = "/v1/events/stream?eventType=node.succeeded%2Cnode.failed&workflowId=w"
    assert {one.target for one in service.asked} == {target}
    assert [one.headers["last-event-id"] for one in service.asked] == ["6", "8", "9"]


def test_watch_prints_a_line_per_change_without_a_terminal(service: ScriptedService) -> None:
    before = {**RECORD, "status": "running", "nodes": {"a": {"status": "running"}}}
    told = [("workflow.started", {}), ("node.succeeded", {"nodeId": "a"})]
    service.script = [Scripted(200, before), streamed(told), Scripted(200, before)]
    service.script += [Scripted(200, RECORD)]
    result = run("workflow", "watch", "w1", "--url", service.url)
    assert service.asked[1].target == "/v1/workflows/w1/stream"
    assert result.stdout.splitlines() == [
        "   a running",
        "   a success did:net:a 12 ms 0.05 credits",
        "   b skipped UPSTREAM_FAILED: a failed",
        "   w1 success",
    ]


def test_watch_shows_waits_the_error_and_results(service: ScriptedService) -> None:
    waiting = {"reason": "1 offers it: 1 offline", "since": "S", "until": "U"}
    error = {"code": "AGENT_UNAVAILABLE", "error": "AGENT_UNAVAILABLE", "message": "gone"}
    nodes = {"s": {"status": "ready", "waitingFor": waiting}}
    ended = {
        "s": {"status": "failed", "error": error},
        "t": {"status": "success", "result": {"text": "x" * 3_000}},
    }
    record = {"id": "w1", "workflowId": "w1", "status": "failed", "error": error, "nodes": ended}
    published = {"workflowId": "w1", "status": "pending", "warnings": ["w"]}
    service.script = [
        Scripted(200, published),
        Scripted(200, {**record, "status": "running", "nodes": nodes}),
        streamed([("workflow.finished", {})]),
        Scripted(200, record),
        Scripted(200, record),
    ]
    result = run("workflow", "publish", "-", "--watch", "--url", service.url, stdin='{"nodes": {}}')
    assert result.exit_code == 1
    assert result.stderr == "warning: w\n"
    *lines, shown = result.stdout.splitlines()
    assert lines == [
        "workflowId    w1",
        "   s ready: waiting for an agent (1 offers it: 1 offline) until U",
        "   s failed AGENT_UNAVAILABLE: gone",
        "   t success",
        "   w1 failed AGENT_UNAVAILABLE: gone",
    ]
    assert shown.startswith('result of t: {"text": "xxx')
    assert shown.endswith("… (3012 characters; --output json shows all)")
    assert shown in run("workflow", "show", "w1", "--url", service.url).stdout
