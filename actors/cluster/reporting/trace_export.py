"""Exports the traces of ended workflows to an OpenTelemetry collector.

The export follows the audit log, which has an entry for the end of each workflow. The position is
stored after the collector has accepted the spans, so a trace may be exported twice but is never
left out. An unreachable collector delays only the export. Reference: features.md (Traces).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from actors.process.loop_clock import every
from core.settings import Settings
from core.workflow.traces import NodeRows, TraceContext, node_spans, trace_of, workflow_span
from federation.otlp import OtlpSender
from ledger.connections.pools import OperationalPool
from ledger.features.audit_log import LogFollower, log_position, move_position
from ledger.features.traces import (
    FIRST_PLACE,
    ended_after,
    place_of,
    traced_nodes,
    traced_workflows,
)
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.traces")

INTERVAL_S: Final = 2.0
ENTRIES_MAX: Final = 500
# The most nodes whose spans one request contains; together about 1 MB.
NODES_MAX: Final = 500


class _Positions(OperationalPool):
    name, is_durable = "callboard-traces", False


class TraceExport:
    """Exports the workflows that end after the deployment first started with an `otlp_endpoint`.

    Args:
        settings: the deployment's settings, with an `otlp_endpoint`.
    """

    def __init__(self, settings: Settings) -> None:
        url = settings.database_url
        self._reader = LedgerReader(url, pool_size=1)
        self._pool = _Positions(url)
        self._sender = OtlpSender(settings.otlp_endpoint, settings.service)
        self._is_delayed = False

    async def run(self) -> None:
        """Export until cancelled."""

        async def catch_up() -> None:
            while await self.export_once():
                pass

        await every(INTERVAL_S, catch_up, "export of traces")

    async def close(self) -> None:
        """Close the connections."""
        await self._reader.close()
        await self._pool.close()
        await asyncio.to_thread(self._sender.close)

    async def export_once(self) -> bool:
        """Export the workflows that ended in the next audit entries.

        Returns: whether the position has moved. It moves if there were new entries and the
        collector accepted the spans.
        """
        position, _ = await log_position(self._pool, self._reader, LogFollower.TRACES)
        last, ended = await ended_after(self._reader, position, ENTRIES_MAX)
        is_taken = not ended or await self._export(ended)
        if not is_taken and not self._is_delayed:
            log.warning("the collector takes no spans: the export waits position=%d", position)
        elif is_taken and self._is_delayed:
            log.info("the collector takes spans again")
        self._is_delayed = not is_taken
        if not is_taken or last == position:
            return False
        await move_position(self._pool, LogFollower.TRACES, last)
        return True

    async def _export(self, ids: Sequence[str]) -> bool:
        """Send the spans of these workflows; return False if the collector does not accept them."""
        rows = {str(row["id"]): row for row in await traced_workflows(self._reader, ids)}
        traces = {
            one: trace
            for one, row in rows.items()
            if (trace := trace_of(one, row["traceparent"])).is_sampled
        }
        if not traces:
            return True
        make = self._sender.span
        own = [make(trace.trace_id, one, workflow_span(rows[one])) for one, trace in traces.items()]
        if not await asyncio.to_thread(self._sender.send, own):
            return False
        after = FIRST_PLACE
        while True:
            nodes = await traced_nodes(self._reader, list(traces), after=after, limit=NODES_MAX)
            if not nodes or not await asyncio.to_thread(self._send, traces, nodes):
                return not nodes
            after = place_of(nodes[-1].node)

    def _send(self, traces: Mapping[str, TraceContext], nodes: Sequence[NodeRows]) -> bool:
        """Send the spans of nodes. Runs in a thread, because building the spans is slow too."""
        spans = []
        for rows in nodes:
            workflow_id = place_of(rows.node)[0]
            trace_id = traces[workflow_id].trace_id
            spans += [self._sender.span(trace_id, workflow_id, span) for span in node_spans(rows)]
        return self._sender.send(spans)
