"""`Context`: the dispatch that a handler answers. `Later`: a dispatch whose result follows later.

Reference: features.md (Dispatch).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from core.records.dispatch import DispatchRequest


@dataclass(slots=True)
class Context:
    """The dispatch that a handler answers; a parameter with the type `Context` receives it.

    Members with the value None were absent in the dispatch.

    Args:
        event_id: the id of this attempt; it is the same if the dispatch is sent again.
        capability_id: the requested capability.
        workflow_id: the workflow's id.
        task_id: the workflow's id as a task.
        node_id: the node's name.
        attempt: the number of the attempt, from 1.
        deadline: the end of the node's timeout; a later result is not paid.
        idempotency_key: the key of the work; it is the same for all attempts at the same work.
        traceparent: the W3C trace context; the handler can send it with its own requests.
        meta: further members that the coordinator sent.
        metrics: the members that the handler adds to the reply's metrics.
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
        """Seconds until the deadline, negative after it; None if there is no deadline."""
        if self.deadline is None:
            return None
        return (self.deadline - datetime.now(UTC)).total_seconds()

    def report_tokens(self, *, read: int = 0, written: int = 0) -> None:
        """Add tokens to the reply's metrics; a price per token is charged for these tokens.

        Args:
            read: input tokens.
            written: output tokens.
        """
        for name, count in (("input_tokens", read), ("output_tokens", written)):
            self.metrics[name] = self.metrics.get(name, 0) + count
        self.metrics["tokens_used"] = self.metrics.get("tokens_used", 0) + read + written


@dataclass(frozen=True, slots=True)
class Later:
    """A dispatch whose result the agent submits later, with `Agent.deliver`.

    `result_id` is a credential: a caller that has it can submit the result. With `to_json` and
    `from_json`, an agent can store the value and submit the result from another process.
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
        """Return the value from which `to_json` made this object."""
        return cls(**kept)


def context_of(
    request: DispatchRequest, traceparent: str | None, idempotency_key: str | None = None
) -> Context:
    """Return the context of a dispatch.

    Args:
        traceparent, idempotency_key: the values of these headers, None if they are absent.
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
