"""The waterfall of a trace: a line per span, below its parent, of a bounded width."""

from __future__ import annotations

import json
from typing import Any

from callboard.cli.waterfall import BAR_WIDTH, draw
from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

Json = dict[str, Any]
AT = "2026-01-31T12:00:0"
WORKFLOW = "0198c0de-0000-7000-8000-000000000001"


def span(name: str, parent: str | None, start: str, end: str | None, **more: Any) -> Json:
    times = {"startTime": f"{AT}{start}Z", "endTime": None if end is None else f"{AT}{end}Z"}
    made = {"spanId": name, "parentSpanId": parent, "operationName": name, "agentDid": None}
    return {**made, **times, "status": "ok", **more}


SPANS = [
    span("workflow", "f" * 16, "0.000", "4.000"),
    span("node", "workflow", "0.000", None, nodeId="a" * 60, status="unset"),
    span("attempt", "node", "0.000", "4.000", attempt=1, outcome="success", agentDid="did:x:a"),
    span("queue", "attempt", "0.000", "1.000"),
    span("dispatch", "attempt", "1.000", "4.000"),
]


def test_spans_are_indented_by_what_they_are() -> None:
    indents = [len(line) - len(line.lstrip()) for line in draw(SPANS)]
    assert indents == [0, 2, 4, 6, 6]


def test_a_line_has_name_bar_duration_and_status() -> None:
    whole, node, attempt, queue, dispatch = draw(SPANS)
    assert whole == f"{'workflow':<36}  |{'█' * BAR_WIDTH}|  {'4000 ms':>10}  ok"
    assert node.startswith("  node aaa")
    assert node[35] == "…"
    assert node.endswith("        open  unset")
    assert attempt.startswith("    attempt 1 ")
    assert attempt.endswith("success  did:x:a")
    assert f"|{'█' * 10}{' ' * 30}|" in queue
    assert f"|{' ' * 10}{'█' * 30}|" in dispatch


def test_hostile_and_extreme_spans_are_drawn_in_their_columns() -> None:
    odd = [
        span("node", None, "0.000", "0.000", nodeId="\x1b[31mred\x07"),
        span("attempt", "node", "0.000", "9.999", attempt=1, agentDid="did:x:" + "d" * 250),
        span("queue", "attempt", "9.999", "9.999"),
    ]
    lines = list(draw(odd))
    assert "\x1b" not in lines[0]
    assert "\x07" not in lines[0]
    assert all(len(line) <= 150 for line in lines)
    assert lines[2].index("|") + BAR_WIDTH == lines[2].rindex("█")
    assert list(draw([])) == []


def test_the_verb_takes_a_workflow_and_reads_all_pages(service: ScriptedService) -> None:
    trace = {"id": "e" * 32, "workflowId": WORKFLOW, "status": "completed"}
    page = {"trace": trace, "limit": 1, "offset": 0}
    record = {"id": WORKFLOW, "traceId": "e" * 32, "nodes": {}}
    service.script = [
        Scripted(200, record),
        Scripted(200, {**page, "spans": SPANS[:3], "nextCursor": "YQ"}),
        Scripted(200, {**page, "spans": SPANS[3:], "nextCursor": None}),
    ]
    result = run("workflow", "trace", WORKFLOW, "--url", service.url)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == list(draw(SPANS))
    path = f"/v1/traces/{'e' * 32}?workflowId={WORKFLOW}"
    assert [one.target for one in service.asked[1:]] == [path, f"{path}&cursor=YQ"]


def test_the_verb_takes_a_trace_id_and_prints_json(service: ScriptedService) -> None:
    reply = {"trace": {"id": "e" * 32}, "spans": SPANS, "nextCursor": None}
    service.script = [Scripted(200, reply)]
    result = run("workflow", "trace", "e" * 32, "--url", service.url, "--output", "json")
    assert json.loads(result.stdout) == {"trace": reply["trace"], "spans": SPANS}
    assert service.asked[0].target == f"/v1/traces/{'e' * 32}"
