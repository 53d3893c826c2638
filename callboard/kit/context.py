"""What a handler can know of the dispatch it answers, tell about its work, and answer later.

Reference: features.md (Dispatch).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from core.records.dispatch import DispatchRequest


@dataclass(slots=True)
class Context:
    """The dispatch that a handler answers; handed to a parameter annotated `Context`.

    Args:
        event_id: the same for every delivery of this attempt.
        capability_id: what is asked for.
        workflow_id: None where the sender names none, as in all that follow.
        task_id: the workflow's as a task.
        node_id: the node's name.
        attempt: 1 for the first.
        deadline: when the node's timeout passes; what comes later is not paid.
        idempotency_key: the same for all attempts at the same work, which it tells from other work.
        traceparent: the W3C trace context, to send on with requests of the handler's own.
        meta: further members that the coordinator sent.
    """

    event_id: str
    capability_id: str
    workflow_id: str | None = None
    task_id: str | None = None
    node_id: str | None = None
    attempt: int | None = None
    deadline: datetime | None = None
    traceparent: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None

    @property
    def trace_id(self) -> str | None:
        """The 32 hex digits that name the workflow's trace."""
        parts = (self.traceparent or "").split("-")
        return parts[1] if len(parts) >= 4 else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, below 0 after it; None where there is none."""
        if self.deadline is None:
            return None
        return (self.deadline - datetime.now(UTC)).total_seconds()

    def report_tokens(self, *, read: int = 0, written: int = 0) -> None:
        """Add tokens to the reply's metrics: what an agent that is paid by tokens is paid for.

        Args:
            read: input tokens.
            written: output tokens.
        """
        for name, count in (("input_tokens", read), ("output_tokens", written)):
            self.metrics[name] = self.metrics.get(name, 0) + count
        self.metrics["tokens_used"] = self.metrics.get("tokens_used", 0) + read + written


@dataclass(frozen=True, slots=True)
class Later:
    """The dispatch to which a result will belong.

    `result_id` is a credential: a caller that has it can hand the result in. `to_json` and
    `from_json` let an agent keep it beyond its own process.
    """

    event_id: str
    workflow_id: str
    node_id: str
    result_id: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object from which `from_json` makes an equal value."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Later:
        """Make it from what `to_json` returned."""
        return cls(**kept)


def context_of(
    request: DispatchRequest, traceparent: str | None, idempotency_key: str | None = None
) -> Context:
    """Return the context of a dispatch.

    Args:
        traceparent, idempotency_key: the headers' values, None when they are absent.
    """
    meta = dict(request.meta or {})
    return Context(
        event_id=request.event_id,
        capability_id=request.capability_id,
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        node_id=request.node_id,
        attempt=request.attempt,
        deadline=_time(meta.pop("deadline", None)),
        traceparent=traceparent,
        meta=meta,
        idempotency_key=idempotency_key,
    )


def _time(text: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None
