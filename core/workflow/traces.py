"""The trace of a workflow and its spans, computed from stored rows; no trace is stored.

A workflow continues the trace of the `traceparent` header of its publish (W3C Trace Context).
Without this header, the trace id is computed from the workflow id.

The workflow's span has node spans. A node span has spans of attempts, verifications and
settlements. An attempt has two spans: the time in its agent's queue, then the dispatch. Rows are
rows of the ledger: mappings from a column's name to its value.
Reference: features.md (Traces).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from core.ids import span_id, trace_id
from core.workflow.rules.payment import payment_line
from core.workflow.transitions import NodeStatus, WorkflowStatus

# A later version may add fields after another dash.
_FORM: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?",
    re.DOTALL,
)
_FIRST_VERSION: Final = b"00"
# The flags that the standard defines: sampled, and random trace id. All other flags are cleared.
_SAMPLED: Final = 0x01
_KNOWN_FLAGS: Final = 0x03


class TraceContext(NamedTuple):
    """The trace that a workflow belongs to.

    `parent_span_id`: the caller's span; None if the caller sent no trace. `flags`: two hexadecimal
    digits.
    """

    trace_id: str
    parent_span_id: str | None
    flags: str

    @property
    def is_sampled(self) -> bool:
        """Whether the sampled flag is set: the caller may have recorded its own spans."""
        return bool(int(self.flags, 16) & _SAMPLED)

    def traceparent(self, span_id: str) -> str:
        """Return the `traceparent` header for a request that is a child of the span `span_id`."""
        return f"00-{self.trace_id}-{span_id}-{self.flags}"


def read_traceparent(header: bytes | None) -> str | None:
    """Return a caller's `traceparent` in the form of version 00.

    Args:
        header: the value of the header; None when it was not sent.

    Returns: None without a valid header, because W3C Trace Context demands that invalid headers are
    ignored.
    """
    match = None if header is None else _FORM.fullmatch(header)
    if match is None or (match[1] == _FIRST_VERSION and match[5] is not None):
        return None
    flags = int(match[4], 16) & _KNOWN_FLAGS
    return f"00-{match[2].decode()}-{match[3].decode()}-{flags:02x}"


def trace_of(workflow_id: str, traceparent: str | None) -> TraceContext:
    """Return the trace that a workflow belongs to.

    Args:
        traceparent: the value that `read_traceparent` returned at the publish.
    """
    if traceparent is None:
        return TraceContext(trace_id(workflow_id), None, "01")
    _, trace, parent, flags = traceparent.split("-")
    return TraceContext(trace, parent, flags)


Row = Mapping[str, Any]

# The span status for each status of a workflow or node and each outcome of an attempt. Values that
# are not listed belong to work that is open or was cancelled: their span status is "unset".
_STATUSES: Final[Mapping[str | None, str]] = {
    "success": "ok",
    "failed": "error",
    "timeout": "error",
    "error": "error",
    "lost": "error",
    "rejected": "error",
}
_UNSET: Final = "unset"
_OPERATIONS: Final = {"primary": "attempt", "verify": "verification"}
_TRACE_STATUSES: Final = {WorkflowStatus.SUCCESS: "completed", WorkflowStatus.PENDING: "running"}


class Span(Struct, frozen=True):
    """A span: one timed part of a workflow. The fields are those of the API's record.

    `end_time_ms`: None while the span is open. `attempt`: the number of the attempt or
    verification; in a settlement, the one that was paid. `outcome`: the outcome of an attempt or
    verification that has ended.
    """

    span_id: str
    parent_span_id: str | None
    operation_name: str
    start_time_ms: int
    end_time_ms: int | None
    status: str
    agent_did: str | None = None
    node_id: str | None = None
    attempt: int | None = None
    outcome: str | None = None


class NodeRows(Struct, frozen=True):
    """The row of a node, the rows of its attempts, and the entries that paid for them."""

    node: Row
    attempts: list[Row]
    payments: list[Row]


def trace_status(workflow: Row) -> str:
    """Return the status of a workflow's trace: `completed`, `running`, or how it ended."""
    return _TRACE_STATUSES.get(workflow["status"], str(workflow["status"]))


def workflow_span(workflow: Row) -> Span:
    """Return the span of a workflow. Its parent is the caller's span, if any."""
    workflow_id = str(workflow["id"])
    begin_ms, end_ms = workflow["created_ms"], workflow["completed_ms"]
    own_id = span_id(workflow_id, "", 0, "workflow")
    parent_id = trace_of(workflow_id, workflow["traceparent"]).parent_span_id
    return Span(own_id, parent_id, "workflow", begin_ms, end_ms, _status(workflow["status"]))


def node_spans(rows: NodeRows) -> list[Span]:
    """Return the node's span, then its child spans; none if it has no attempt and has not ended."""
    node, workflow_id = rows.node, str(rows.node["workflow_id"])
    name, ended_ms, did = node["name"], node["completed_ms"], node["agent_did"]
    own_id = span_id(workflow_id, name, 0, "node")
    parts: list[Span] = []
    for attempt in (*rows.attempts, *_open_attempt(rows)):
        parts += _attempt_spans(workflow_id, name, own_id, attempt)
    parts += _settlements(workflow_id, own_id, rows)
    times = [part.start_time_ms for part in parts]
    if ended_ms is not None:
        times.append(ended_ms)
    if not times:
        return []
    parent_id = span_id(workflow_id, "", 0, "workflow")
    status = _status(node["status"])
    return [Span(own_id, parent_id, "node", min(times), ended_ms, status, did, name), *parts]


def _status(ended: str | None) -> str:
    return _STATUSES.get(ended, _UNSET)


def _open_attempt(rows: NodeRows) -> Iterator[Row]:
    """Yield a row for the open attempt or verification of a node, if there is one."""
    node = rows.node
    if node["status"] not in (NodeStatus.DISPATCHED, NodeStatus.RUNNING):
        return
    ended = {(one["kind"], one["attempt"]): one for one in rows.attempts}
    replied = ended.get(("primary", node["attempt"]))
    number, kind, did = node["attempt"], "primary", node["agent_did"]
    queued_ms, started_ms = node["dispatched_ms"], node["started_ms"]
    if replied is not None:
        number, kind, did = node["verify_attempt"], "verify", node["verifier_did"]
        # The start of an open verification is not stored, because the verification gets a row only
        # when it ends. The arrival of the result is used instead.
        queued_ms, started_ms = replied["completed_ms"], None
    if did is not None and (kind, number) not in ended:
        times = {"queued_ms": queued_ms, "started_ms": started_ms, "completed_ms": None}
        yield {"kind": kind, "attempt": number, "agent_did": did, "outcome": None, **times}


def _attempt_spans(workflow_id: str, name: str, node_span_id: str, row: Row) -> Iterator[Span]:
    """Yield the span of an attempt or verification, then its queue and dispatch spans."""
    number, kind, outcome, did = row["attempt"], row["kind"], row["outcome"], row["agent_did"]
    queued_ms, started_ms, ended_ms = row["queued_ms"], row["started_ms"], row["completed_ms"]
    if queued_ms is None:
        queued_ms = started_ms
        if queued_ms is None:
            return
    elif started_ms is not None:
        # The start time of an open attempt may come from another machine's clock.
        started_ms = max(queued_ms, started_ms)
    status, own_id = _status(outcome), span_id(workflow_id, name, number, kind)
    what = (did, name, number)
    yield Span(own_id, node_span_id, _OPERATIONS[kind], queued_ms, ended_ms, status, *what, outcome)
    if started_ms is None:  # the rows do not say whether the attempt was sent yet
        return
    if row["queued_ms"] is not None:
        part_id = span_id(workflow_id, name, number, f"{kind} queue")
        yield Span(part_id, own_id, "queue", queued_ms, started_ms, _UNSET, *what)
    part_id = span_id(workflow_id, name, number, f"{kind} dispatch")
    yield Span(part_id, own_id, "dispatch", started_ms, ended_ms, status, *what)


def _settlements(workflow_id: str, node_span_id: str, rows: NodeRows) -> Iterator[Span]:
    """Yield a span for each payment of a node: from the end of the work to the ledger entry."""
    name = rows.node["name"]
    verifications = [one for one in rows.attempts if one["kind"] == "verify"]
    paid = {payment_line(name, one["attempt"]): one for one in verifications} | {name: rows.node}
    for payment in rows.payments:
        line = payment["node_id"]
        work = paid.get(line)
        if work is None or work["completed_ms"] is None:
            continue  # the payment was made after the row was read
        own_id, decided_ms = span_id(workflow_id, line, 0, "settlement"), work["completed_ms"]
        stored_ms = max(decided_ms, payment["created_ms"])
        what = (work["agent_did"], name, work["attempt"])
        yield Span(own_id, node_span_id, "settlement", decided_ms, stored_ms, "ok", *what)
