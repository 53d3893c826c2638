"""Rows of traces: read in three statements, between which a workflow goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import sqlalchemy as sql

from core.workflow.events import NodeChanged, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.features.traces import traced_nodes
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import AGENT, AT, CREDIT, Flow


async def test_a_node_that_begins_while_a_trace_is_read_is_left_out(
    store: LedgerStore, database: Database
) -> None:
    flow = Flow()
    around = [NodeChanged(name, NodeStatus.SKIPPED, completed_ms=AT + 9) for name in ("0", "b")]
    begun = flow.publish(records=(WorkflowChanged(WorkflowStatus.RUNNING, AT),))
    outcomes = await store.commit([begun, flow.advance(*around)], AT)
    assert {one.error for one in outcomes} == {None}
    started = NodeChanged("a", NodeStatus.DISPATCHED, attempt=1, agent_did=AGENT)
    async with LedgerReader(database.service_url, pool_size=1) as reader:

        class Interrupted:
            """A reader between whose first and second statement the node `a` runs and is paid."""

            async def rows(
                self, statement: sql.Executable, values: Mapping[str, Any]
            ) -> list[RowDict]:
                found = await reader.rows(statement, values)
                if "FROM callboard.node" in str(statement):
                    outcomes = await store.commit([flow.advance(started), flow.pay(CREDIT)], AT)
                    assert {one.error for one in outcomes} == {None}
                return found

        nodes = await traced_nodes(cast(LedgerReader, Interrupted()), [flow.id], limit=9)
    read = [(rows.node["name"], len(rows.attempts), len(rows.payments)) for rows in nodes]
    assert read == [("0", 0, 0), ("b", 0, 0)]
