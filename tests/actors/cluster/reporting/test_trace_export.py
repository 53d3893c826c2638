"""The export of traces, against the real Postgres and a receiver that reads OTLP's wire format."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from actors.cluster.reporting import trace_export
from actors.cluster.reporting.trace_export import TraceExport
from actors.workflows.workflow_restore import restore_workflow
from core.ids import span_id, trace_id
from core.settings import Settings
from core.workflow.events import NodeChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.features.traces import trace_workflows
from ledger.features.unfinished import UnfinishedPages
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import AGENT, AT, CREDIT, PAYER, Flow, open_with_member
from tests.platform.loopback import Quiet, loopback

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Receiver:
    """An OTLP receiver. `statuses`: its next answers; when there are none it takes what comes."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    def spans(self) -> list[Any]:
        """Return all spans that it has taken."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Serve a receiver on loopback."""
    made = Receiver()

    class Handler(Quiet):
        def do_POST(self) -> None:
            raw = self.request_body()
            if self.headers.get("Content-Encoding") == "gzip":
                raw = gzip.decompress(raw)
            status = made.statuses.pop(0) if made.statuses else 200
            if status == 200:
                assert self.headers["Content-Type"] == "application/x-protobuf"
                made.requests.append(ExportTraceServiceRequest.FromString(raw))
            body = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if status == 429:  # longer than the exporter itself waits to try again
                self.send_header("Retry-After", "60")
            self.end_headers()
            self.wfile.write(body)

    with loopback(Handler) as url:
        made.url = f"{url}/v1/traces"
        yield made


@dataclass
class Scene:
    """A ledger whose workflows are exported."""

    store: LedgerStore
    export: TraceExport
    receiver: Receiver

    async def ended(self, *traceparents: str | None) -> list[Flow]:
        """Commit a workflow for each of these that runs its node `a` and ends."""
        flows = [Flow() for _ in traceparents]
        for flow, traceparent in zip(flows, traceparents, strict=True):
            publish = replace(flow.publish(), traceparent=traceparent)
            outcomes = await self.store.commit([publish, flow.pay(CREDIT), flow.end()], AT)
            assert {one.error for one in outcomes} == {None}
        return flows


@pytest.fixture
async def scene(database: Database, receiver: Receiver) -> Any:
    """A ledger, a receiver and the export between them, which has found its first position."""
    store = await open_with_member(database.service_url)
    settings = Settings(
        database_url=database.service_url, otlp_endpoint=receiver.url, service="tested"
    )
    export = TraceExport(settings)
    made = Scene(store, export, receiver)
    await made.ended(None)  # before the export was switched on
    assert not await export.export_once()
    yield made
    await export.close()
    await store.close()


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_ended_workflows_arrive_with_the_ids_that_agents_and_readers_see(
    scene: Scene,
) -> None:
    own, callers, unsampled = await scene.ended(
        None, f"00-{TRACE}-{PARENT}-01", f"00-{'c' * 32}-{PARENT}-00"
    )
    running = Flow()
    await scene.store.commit([running.publish()], AT)
    await scene.export.export_once()
    request = scene.receiver.requests[0]
    (service,) = request.resource_spans[0].resource.attributes
    assert (service.key, service.value.string_value) == ("service.name", "tested")
    spans = scene.receiver.spans()
    by_name = {(one.trace_id.hex(), one.name): one for one in spans}
    assert {trace for trace, _ in by_name} == {trace_id(own.id), TRACE}
    assert unsampled.id not in {attributes(one)["callboard.workflow.id"] for one in spans}
    for trace, flow, parent in ((trace_id(own.id), own, ""), (TRACE, callers, PARENT)):
        whole = by_name[trace, "workflow"]
        attempt = by_name[trace, "attempt a"]
        assert whole.parent_span_id.hex() == parent
        assert by_name[trace, "node a"].parent_span_id == whole.span_id
        assert attempt.span_id.hex() == span_id(flow.id, "a", 1)
        assert attempt.start_time_unix_nano == AT * 1_000_000
        assert attempt.end_time_unix_nano == (AT + 5) * 1_000_000
        assert attributes(attempt) == {
            "callboard.workflow.id": flow.id,
            "callboard.node": "a",
            "callboard.agent.did": AGENT,
            "callboard.attempt": 1,
            "callboard.outcome": "success",
        }
        assert by_name[trace, "settlement a"].end_time_unix_nano >= attempt.end_time_unix_nano
    assert len({one.span_id for one in spans}) == len(spans)
    # Nothing is exported again.
    await scene.export.export_once()
    assert len(scene.receiver.spans()) == len(spans)


async def test_a_collector_that_is_away_delays_the_export_and_loses_nothing(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "callboard.traces")
    (flow,) = await scene.ended(None)
    scene.receiver.statuses = [429, 429]
    for _ in range(2):
        assert not await scene.export.export_once()
    assert not scene.receiver.requests
    await scene.export.export_once()
    names = {span.name for span in scene.receiver.spans()}
    assert {"workflow", "node a", "attempt a"} <= names
    own = [one.message for one in caplog.records if one.name == "callboard.traces"]
    waits, goes_on = own
    assert waits.startswith("the collector takes no spans")
    assert goes_on == "the collector takes spans again"
    assert attributes(scene.receiver.spans()[0])["callboard.workflow.id"] == flow.id


async def test_spans_that_are_refused_for_good_do_not_hold_up_the_next(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.ended(None)
    scene.receiver.statuses = [400, 413]
    await scene.export.export_once()
    assert not scene.receiver.requests
    assert [one for one in caplog.messages if "refused spans for good" in one]
    (next_one,) = await scene.ended(None)
    await scene.export.export_once()
    ids = {attributes(span)["callboard.workflow.id"] for span in scene.receiver.spans()}
    assert ids == {next_one.id}


async def test_a_large_workflow_is_sent_in_parts_and_an_owners_restart_keeps_its_trace(
    scene: Scene, database: Database
) -> None:
    flow, count = Flow(), trace_export.NODES_MAX + 3
    traceparent = f"00-{TRACE}-{PARENT}-01"
    await scene.store.commit([replace(flow.publish(), traceparent=traceparent)], AT)
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        (found,), _ = await UnfinishedPages(reader, range(256)).page(None)
        running, _, _ = restore_workflow(found, Settings(), AT)
        assert running.traceparent == traceparent
        (row,) = await trace_workflows(reader, TRACE, payer_did=PAYER)
        assert str(row["id"]) == flow.id
        assert await trace_workflows(reader, TRACE, payer_did="did:x:other") == []
        assert await trace_workflows(reader, trace_id(flow.id)) == []
    skipped = [
        NodeChanged(f"n{number:04}", NodeStatus.SKIPPED, completed_ms=AT + 9)
        for number in range(count)
    ]
    outcomes = await scene.store.commit(
        [flow.advance(*skipped), flow.end(WorkflowStatus.FAILED)], AT
    )
    assert {one.error for one in outcomes} == {None}
    await scene.export.export_once()
    names = [span.name for span in scene.receiver.spans()]
    assert len(scene.receiver.requests) == 3
    assert len(names) == len(set(names))
    assert {f"node n{number:04}" for number in range(count)} < set(names)
