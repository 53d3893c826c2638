"""A node of a workflow record, its large result shown whole or by reference."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from actors.dispatch.large_results import Blobs
from actors.gateway.workflow_reads import WorkflowReads
from core.canonical import hash_bytes
from core.settings import KIB, Settings
from ledger.reads.reader import LedgerReader, StoredWorkflow
from serve_app.operations.views import node_state
from tests.actors.dispatch.test_large_results import Shelf

pytestmark = pytest.mark.anyio


def node(**columns: Any) -> dict[str, Any]:
    """Return a node's row."""
    row: dict[str, Any] = dict.fromkeys(
        (
            "error",
            "agent_did",
            "started_ms",
            "completed_ms",
            "metrics",
            "result_json",
            "result_ref",
            "selection_json",
        )
    )
    return {**row, "name": "a", "status": "success", "attempt": 1, "cost_micro": 0, **columns}


async def shown(rows: list[dict[str, Any]], blobs: Blobs, bytes_max: int) -> list[dict[str, Any]]:
    """Return nodes as a record of a bounded size shows them."""
    reads = WorkflowReads(Settings(record_bytes_max=bytes_max), cast(LedgerReader, None), blobs)
    await reads.load_results(StoredWorkflow({"manifest": "{}", "intent": ""}, rows))
    return [orjson.loads(orjson.dumps(node_state(row))) for row in rows]


async def test_large_results_are_shown_whole_up_to_the_records_bound() -> None:
    blobs = Blobs(Shelf(), cache_bytes_max=0)
    refs = [await blobs.put(orjson.dumps({"text": letter * 40 * KIB})) for letter in "ab"]
    rows = [node(result_json="{}"), *(node(result_ref=ref.to_json()) for ref in refs)]
    nodes = await shown(rows, blobs, 64 * KIB)
    assert nodes[0]["result"] == {}
    assert nodes[1]["result"] == {"text": "a" * 40 * KIB}
    assert "result" not in nodes[2]
    assert nodes[2]["resultRef"] == {"sha256": refs[1].hash, "size": refs[1].size}


async def test_a_record_of_many_inline_results_stays_within_its_bound() -> None:
    text = orjson.dumps({"text": "ä" * 5 * KIB}).decode()
    rows = [node(result_json=text, metrics={"a": "m" * KIB}) for _ in range(100)]
    nodes = await shown(rows, Blobs(Shelf(), cache_bytes_max=0), 256 * KIB)
    assert 0 < sum("result" in one for one in nodes) < 100
    assert len(orjson.dumps(nodes)) <= 256 * KIB
    assert nodes[-1]["resultRef"] == {
        "sha256": hash_bytes(text.encode()),
        "size": len(text.encode()),
    }


def test_node_without_a_result_has_neither() -> None:
    assert not {"result", "resultRef"} & node_state(node()).keys()
