"""Traces: a caller's own is continued, and every run can be read as spans.

Spec: Trace, Span, GET /v1/traces/{traceId}.
"""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from callboard.client import Client
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
)
from tests.contract.stub_agent import refuse
from tests.contract.test_execution_replies import GOOD, scripted

Json = dict[str, Any]
PARENT = "00f067aa0ba902b7"
SPAN = {"spanId", "parentSpanId", "agentDid", "operationName", "startTime", "endTime", "status"}
FAULT = (500, {"status": "error", "error": "not now"})
APPROVED = (200, {"status": "success", "result": {"approved": True}})


def new_trace() -> str:
    return uuid.uuid4().hex


def run(payer: Caller, manifest: Json, trace_id: str | None = None, flags: str = "00") -> Json:
    """Run a workflow below a caller's span; what the owner tells of it is what the rows have."""
    sent = {} if trace_id is None else {"traceparent": f"00-{trace_id}-{PARENT}-{flags}"}
    record = answer(payer.publish(manifest, Prefer="wait=30", **sent))
    record.pop("warnings", None)
    assert answer(payer.http.get(f"/v1/workflows/{record['id']}")) == record
    return record


def read(caller: Caller, trace_id: str, **query: str) -> Json:
    """Return a trace; each span is checked beside the others."""
    reply = answer(caller.http.get(f"/v1/traces/{trace_id}", params=query))
    spans = {span["spanId"]: span for span in reply["spans"]}
    assert len(spans) == len(reply["spans"])
    for span in reply["spans"]:
        assert set(span) >= SPAN
        start = datetime.fromisoformat(span["startTime"])
        assert span["endTime"] is None or datetime.fromisoformat(span["endTime"]) >= start
        if span["operationName"] != "workflow" and not query:
            assert start >= datetime.fromisoformat(spans[span["parentSpanId"]]["startTime"])
    return reply


def named(reply: Json, operation: str, node: str | None = None) -> list[Json]:
    """Return the spans of an operation, of all nodes or of one."""
    return [
        span
        for span in reply["spans"]
        if span["operationName"] == operation and node in (None, span.get("nodeId"))
    ]


def test_a_workflow_continues_its_callers_trace_to_its_agents(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent, trace_id = make_agent(), new_trace()
    record = run(payer, chain_of(agent.capability, "ab"), trace_id)
    assert record["traceId"] == trace_id
    reply = read(payer, trace_id)
    assert reply["trace"] == {
        "id": trace_id,
        "workflowId": record["id"],
        "workflowIds": [record["id"]],
        "startedAt": record["createdAt"],
        "endedAt": record["completedAt"],
        "status": "completed",
    }
    assert reply["nextCursor"] is None
    (whole,) = named(reply, "workflow")
    assert (whole["parentSpanId"], whole["agentDid"], whole["status"]) == (PARENT, None, "ok")
    operations = Counter(span["operationName"] for span in reply["spans"])
    parts = ("node", "attempt", "queue", "dispatch", "settlement")
    assert operations == {"workflow": 1, **dict.fromkeys(parts, 2)}
    for name, headers in zip("ab", agent.stub.headers, strict=True):
        (node,), (attempt,) = named(reply, "node", name), named(reply, "attempt", name)
        assert (node["parentSpanId"], attempt["parentSpanId"]) == (whole["spanId"], node["spanId"])
        assert headers["traceparent"] == f"00-{trace_id}-{attempt['spanId']}-00"
        assert (attempt["agentDid"], attempt["attempt"]) == (agent.did, 1)
        assert (attempt["outcome"], attempt["status"]) == ("success", "ok")
        for part in ("queue", "dispatch"):
            (span,) = named(reply, part, name)
            assert span["parentSpanId"] == attempt["spanId"]
        (paid,) = named(reply, "settlement", name)
        assert paid["parentSpanId"] == node["spanId"]


@pytest.mark.parametrize(
    "sent",
    [
        f"00-{'0' * 32}-{PARENT}-01",
        f"ff-{'a' * 32}-{PARENT}-01",
        f"00-{'A' * 32}-{PARENT}-01",
        "00-' OR 1=1",
    ],
)
def test_an_invalid_traceparent_is_ignored(payer: Caller, make_agent: MakeAgent, sent: str) -> None:
    agent = make_agent()
    record = answer(
        payer.publish(chain_of(agent.capability, "a"), Prefer="wait=30", traceparent=sent)
    )
    own = record["id"].replace("-", "")
    assert record["traceId"] == own
    reply = read(payer, own)
    (attempt,) = named(reply, "attempt")
    assert agent.stub.headers[0]["traceparent"] == f"00-{own}-{attempt['spanId']}-01"
    assert named(reply, "workflow")[0]["parentSpanId"] is None


def test_each_way_to_publish_takes_it_and_a_repeat_keeps_the_first(
    payer: Caller, make_agent: MakeAgent
) -> None:
    capability, trace_id = make_agent().capability, new_trace()
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
    post = payer.http.post
    nodes = {"a": {"capabilityId": capability}}
    several = answer(
        post(
            "/v1/workflows/publish/bulk",
            json={"workflows": [{"nodes": nodes}] * 2},
            headers=headers,
        )
    )["results"]
    listed = {"nodes": [{"id": "a", "capability": capability}], "edges": []}
    one = answer(post("/v1/workflows", json=listed, headers=headers))
    words = {"description": f"[{capability}] do it"}
    task = answer(post("/v1/tasks/publish", json=words, headers=headers))
    repeated = {**headers, "Idempotency-Key": "again"}
    first = answer(post("/v1/workflows/publish", json={"nodes": nodes}, headers=repeated))
    repeated["traceparent"] = f"00-{new_trace()}-{PARENT}-01"
    again = answer(post("/v1/workflows/publish", json={"nodes": nodes}, headers=repeated))
    assert again["workflowId"] == first["workflowId"]
    ids = [made["workflowId"] for made in (*several, one, task, first)]
    reply = read(payer, trace_id)
    assert reply["trace"]["workflowIds"] == sorted(ids, reverse=True)
    assert reply["trace"]["workflowId"] == max(ids)
    for workflow_id in ids:
        chosen = read(payer, trace_id, workflowId=workflow_id)
        assert chosen["trace"]["workflowId"] == workflow_id
        assert chosen["trace"]["workflowIds"] == reply["trace"]["workflowIds"]


def test_callers_who_chose_the_same_trace_id_see_their_own_workflows_only(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent, admin: Caller
) -> None:
    capability, other, trace_id = make_agent().capability, make_caller(100), new_trace()
    mine = run(payer, chain_of(capability, "a"), trace_id)["id"]
    theirs = run(other, chain_of(capability, "a"), trace_id)["id"]
    for caller, own, foreign in ((payer, mine, theirs), (other, theirs, mine)):
        trace = read(caller, trace_id)["trace"]
        assert (trace["workflowId"], trace["workflowIds"]) == (own, [own])
        path = f"/v1/traces/{trace_id}"
        refusal(caller.http.get(path, params={"workflowId": foreign}), 404, "NOT_FOUND")
    assert read(admin, trace_id)["trace"]["workflowIds"] == [theirs, mine]
    # One who chooses the trace id that follows from another's workflow sees nothing of that either.
    plain = run(payer, chain_of(capability, "a"))
    run(other, chain_of(capability, "a"), plain["traceId"])
    assert read(payer, plain["traceId"])["trace"]["workflowIds"] == [plain["id"]]
    assert plain["id"] not in read(other, plain["traceId"])["trace"]["workflowIds"]


def test_what_is_anothers_or_unknown_is_404(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    trace_id, capability = new_trace(), make_agent().capability
    record = run(payer, chain_of(capability, "a"), trace_id)
    get, stranger = payer.http.get, make_caller().http.get
    refusal(stranger(f"/v1/traces/{trace_id}"), 404, "NOT_FOUND")
    # It belongs to its caller's trace, and to none of its own.
    refusal(get(f"/v1/traces/{record['id'].replace('-', '')}"), 404, "NOT_FOUND")
    for unknown in (new_trace(), trace_id.upper(), trace_id[:-1], record["id"], "'"):
        refusal(get(f"/v1/traces/{unknown}"), 404, "NOT_FOUND")
    refusal(get("/v1/traces/%00"), 400, "INVALID_REQUEST")
    refusal(get(f"/v1/traces/{trace_id}?workflowId=x"), 400, "INVALID_REQUEST")
    refusal(get(f"/v1/traces/{trace_id}?limit=101"), 400, "INVALID_REQUEST")


def test_a_retried_node_has_an_attempt_for_each_try(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(scripted(FAULT, GOOD))
    reply = read(payer, run(payer, chain_of(agent.capability, "a"))["traceId"])
    attempts = [(one["attempt"], one["status"], one["outcome"]) for one in named(reply, "attempt")]
    assert attempts == [(1, "error", "error"), (2, "ok", "success")]
    sent = [headers["traceparent"].split("-")[2] for headers in agent.stub.headers]
    assert sent == [one["spanId"] for one in named(reply, "attempt")]


def test_a_failed_node_is_an_error_and_pays_nobody(payer: Caller, make_agent: MakeAgent) -> None:
    record = run(payer, chain_of(make_agent(refuse).capability, "ab"))
    reply = read(payer, record["traceId"])
    assert (record["status"], reply["trace"]["status"]) == ("failed", "failed")
    statuses = {span["nodeId"]: span["status"] for span in named(reply, "node")}
    assert statuses == {"a": "error", "b": "unset"}
    assert named(reply, "workflow")[0]["status"] == "error"
    assert not named(reply, "settlement")


def test_a_verification_is_a_span_of_its_own_and_its_verifier_gets_its_id(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent, trace_id = make_agent(price_cents=100), new_trace()
    verifier = make_agent(scripted(APPROVED), price_cents=20, ownerDid=make_caller().did)
    node = {
        "capabilityId": agent.capability,
        "requiresVerification": True,
        "verifierCapabilityId": verifier.capability,
    }
    run(payer, {"nodes": {"a": node}}, trace_id, flags="01")
    reply = read(payer, trace_id)
    (node_span,), (own,), (judged,) = (
        named(reply, one) for one in ("node", "attempt", "verification")
    )
    assert (judged["agentDid"], judged["parentSpanId"]) == (verifier.did, node_span["spanId"])
    assert judged["startTime"] >= own["startTime"]
    sent = verifier.stub.headers[0]["traceparent"]
    assert sent == f"00-{trace_id}-{judged['spanId']}-01"
    paid = {span["agentDid"] for span in named(reply, "settlement")}
    assert paid == {agent.did, verifier.did}


def test_a_running_workflow_shows_what_is_open(payer: Caller, make_agent: MakeAgent) -> None:
    agent, trace_id = make_agent(is_held=True), new_trace()
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
    published = answer(payer.publish(chain_of(agent.capability, "ab"), **headers))
    agent.stub.wait_dispatched()
    reply = read(payer, trace_id)
    assert (reply["trace"]["status"], reply["trace"]["endedAt"]) == ("running", None)
    (attempt,) = named(reply, "attempt")
    assert (attempt["nodeId"], attempt["endTime"], attempt["status"]) == ("a", None, "unset")
    assert attempt["spanId"] in agent.stub.headers[0]["traceparent"]
    agent.stub.gate.set()
    payer.finished(f"/v1/workflows/{published['workflowId']}")
    assert read(payer, trace_id)["trace"]["status"] == "completed"


def test_a_large_trace_comes_in_pages_of_nodes_and_the_client_reads_them(
    payer: Caller, make_agent: MakeAgent
) -> None:
    capability = make_agent().capability
    nodes = {f"{letter}{'ä' * 127}": {"capabilityId": capability} for letter in "abc"}
    trace_id = run(payer, {"nodes": nodes})["traceId"]
    whole = read(payer, trace_id)["spans"]
    first = read(payer, trace_id, limit="1")
    assert [span["nodeId"] for span in named(first, "node")] == [min(nodes)]
    assert named(first, "workflow")
    url = str(payer.http.base_url)
    with Client(url, payer.key) as client:
        page = client.trace(trace_id, limit=1)
        rows = list(page.rows)
        while (place := page.next_place()) is not None:
            page = client.trace(trace_id, limit=1, **place)
            rows += page.rows
        assert rows == whole
        assert client.trace(trace_id).trace.status == "completed"
