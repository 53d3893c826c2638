"""Sends spans to an OpenTelemetry collector with OpenTelemetry's own exporter (OTLP over HTTP).

This module is imported only if the setting `otlp_endpoint` is set, because the exporter is an
optional dependency of the server. The operator chooses the endpoint, so the egress gate is not
used. Reference: features.md (Traces).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from core.workflow.traces import Span

# The time for one call of the exporter, including its own retries.
SEND_TIMEOUT_S: Final = 10.0
_NS_PER_MS: Final = 1_000_000
_SCOPE: Final = InstrumentationScope("callboard")
_STATUSES: Final = {"ok": StatusCode.OK, "error": StatusCode.ERROR, "unset": StatusCode.UNSET}
# Request timeout, and too many requests: the same batch may be accepted later. With any other 4xx
# status the batch is refused permanently.
_RETRYABLE: Final = (408, 429)

log = logging.getLogger("callboard.traces")


class OtlpSender:
    """Sends spans; each call blocks its thread until the collector replies or the timeout ends.

    Args:
        endpoint: the URL to which spans are posted, such as `http://127.0.0.1:4318/v1/traces`.
        service: the name of this service in the spans.
    """

    def __init__(self, endpoint: str, service: str) -> None:
        self._answers: list[int] = []
        self._session = requests.Session()
        self._session.hooks["response"].append(self._note)
        self._exporter = OTLPSpanExporter(endpoint, timeout=SEND_TIMEOUT_S, session=self._session)
        self._resource = Resource({"service.name": service})

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Send spans; return False if the collector cannot accept them now.

        A batch that the collector refuses permanently is dropped, with an error in the log, so that
        it does not block later batches.
        """
        self._answers.clear()
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return True
        status = self._answers[-1] if self._answers else 0
        if not 400 <= status < 500 or status in _RETRYABLE:
            return False
        log.error("the collector refused spans for good status=%d spans=%d", status, len(spans))
        return True

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def span(self, trace_id: str, workflow_id: str, span: Span) -> ReadableSpan:
        """Return a span of an ended workflow as an OpenTelemetry span.

        Args:
            trace_id: the id of the trace, hexadecimal.
            workflow_id: the id of the workflow.
            span: the span.
        """
        trace = int(trace_id, 16)
        parent = span.parent_span_id
        is_remote = span.node_id is None  # the parent is a span of the caller
        attributes: dict[str, Any] = {
            "callboard.workflow.id": workflow_id,
            "callboard.node": span.node_id,
            "callboard.agent.did": span.agent_did,
            "callboard.attempt": span.attempt,
            "callboard.outcome": span.outcome,
        }
        end_ms = span.start_time_ms if span.end_time_ms is None else span.end_time_ms
        return ReadableSpan(
            span.operation_name
            if span.node_id is None
            else f"{span.operation_name} {span.node_id}",
            context=_context(trace, span.span_id, is_remote=False),
            parent=None if parent is None else _context(trace, parent, is_remote=is_remote),
            resource=self._resource,
            attributes={name: value for name, value in attributes.items() if value is not None},
            kind=SpanKind.CLIENT if span.operation_name == "dispatch" else SpanKind.INTERNAL,
            status=Status(_STATUSES[span.status]),
            start_time=span.start_time_ms * _NS_PER_MS,
            end_time=end_ms * _NS_PER_MS,
            instrumentation_scope=_SCOPE,
        )

    def _note(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self._answers.append(response.status_code)


def _context(trace_id: int, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(trace_id, int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))
