"""Reads workflows for a replica; the reads of concurrent requests are batched into one query.

Each kind of read has its own queue. The queues of heads and records serve callers round robin. A
value that the database refuses fails only its own read. Decision messages-and-large-values.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from actors.dispatch.large_results import Blobs
from actors.gateway.record_bound import bound_results
from actors.process.slices import Slices
from actors.transport.channel import Channel
from core.market.ranking import render_reasons
from core.settings import Settings
from ledger.features.workflow_reads import (
    attempt_agent,
    dispatched_nodes,
    have_ended,
    workflow_heads,
    workflow_records,
    workflow_rows,
)
from ledger.reads.batch_halves import Found, Requested, in_halves
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict, StoredWorkflow, WorkflowHead

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024

# Maximum number of records in one batch. All records of a batch share the size limit of a record.
RECORDS_BATCH = 32
ENDINGS_BATCH = 1_000


class WorkflowReads:
    """Reads single workflows.

    Args:
        settings: gives the capacity of the queues.
        reader: reads the ledger's rows.
        blobs: reads the texts of large results.
        record_bytes_max: the size limit of a workflow record as JSON. Results beyond it are
            replaced by references.
    """

    def __init__(
        self,
        settings: Settings,
        reader: LedgerReader,
        blobs: Blobs,
        *,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        self._record_bytes_max = record_bytes_max
        self._reader = reader
        self._blobs = blobs
        capacity = settings.replica_requests_max
        self._records: Channel[tuple[str, int], StoredWorkflow | None] = Channel(
            "workflow records",
            in_halves(self._read_records),
            capacity=capacity,
            batch_size=RECORDS_BATCH,
            weight_of=lambda asked: min(asked[1], record_bytes_max),
            batch_weight=record_bytes_max,
        )
        self._heads = _queue(
            "workflow heads", partial(workflow_heads, reader), capacity, RECORDS_BATCH
        )
        self._rows = _queue(
            "workflow rows", partial(workflow_rows, reader), capacity, RECORDS_BATCH
        )
        self._dispatched = _queue(
            "dispatched nodes", partial(dispatched_nodes, reader), capacity, ENDINGS_BATCH
        )
        self._endings = _queue(
            "ends of workflows", partial(have_ended, reader), capacity, ENDINGS_BATCH
        )

    async def head(self, workflow_id: str, caller_did: str) -> WorkflowHead | None:
        """Return a workflow's row and the facts that decide whether a caller may see it.

        Args:
            caller_did: the caller in whose queue the read waits; "" for the service itself.

        Returns: None for an unknown workflow.
        """
        return await self._heads.request((workflow_id, caller_did), caller_did)

    async def record(
        self, workflow_id: str, caller_did: str, record_bytes: int | None = None
    ) -> StoredWorkflow | None:
        """Return a workflow's rows, None for an unknown workflow.

        Args:
            caller_did: the caller in whose queue the read waits. A caller with many reads does not
                delay other callers.
            record_bytes: at least `record_bytes` of the workflow's head; None: read the head first.
        """
        if record_bytes is None:
            head = await self.head(workflow_id, caller_did)
            if head is None:
                return None
            record_bytes = head.record_bytes
        return await self._records.request((workflow_id, record_bytes), caller_did)

    async def dispatched_node(self, workflow_id: str, name: str) -> RowDict | None:
        """Return the columns from which a node's result tokens derive, None for an unknown node.

        Args:
            workflow_id: in its canonical spelling.
        """
        return await self._dispatched.request((workflow_id, name))

    async def attempt_agent(
        self, workflow_id: str, name: str, number: int, *, is_verification: bool
    ) -> str | None:
        """Return the agent of an attempt or a verification that has ended, None if unknown."""
        return await attempt_agent(
            self._reader, workflow_id, name, number, is_verification=is_verification
        )

    async def row(self, workflow_id: str) -> RowDict | None:
        """Return only a workflow's id, status and manifest, None for an unknown workflow.

        Args:
            workflow_id: in its canonical spelling.
        """
        return await self._rows.request(workflow_id)

    async def has_ended(self, workflow_id: str) -> bool:
        """Say whether a workflow has ended or does not exist.

        Args:
            workflow_id: in its canonical spelling.
        """
        return await self._endings.request(workflow_id)

    async def load_results(self, stored: StoredWorkflow) -> None:
        """Put the selection reasons and the texts of large results into the nodes' rows.

        The size limit of the record counts the rendered reasons and the results. Reasons are
        rendered in slices, because the reasons of a thousand nodes take 60 ms.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        slices = Slices()
        for row in stored.nodes:
            if row["selection_json"] is not None:
                row["selection_json"] = render_reasons(row["selection_json"])
                await slices.pause()
        refs = bound_results(stored, self._record_bytes_max)
        texts = await self._blobs.texts([ref for _, ref in refs]) if refs else {}
        for node, ref in refs:
            node["result_json"] = texts[ref.hash].decode()

    async def _read_records(self, asked: list[tuple[str, int]]) -> list[StoredWorkflow | None]:
        ids = [workflow_id for workflow_id, _ in asked]
        return await workflow_records(self._reader, ids, bytes_max=self._record_bytes_max)


def _queue(
    name: str,
    read: Callable[[list[Requested]], Awaitable[Sequence[Found]]],
    capacity: int,
    batch_size: int,
) -> Channel[Requested, Found]:
    return Channel(name, in_halves(read), capacity=capacity, batch_size=batch_size)
