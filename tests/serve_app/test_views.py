"""A node of a workflow record, its large result shown whole or by reference."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from actors.blobs import Blobs
from actors.gateway import Gateway
from core.settings import Settings
from core.workflow.blob_ref import BlobRef
from ledger.queries.reader import StoredWorkflow
from serve_app.views import node_state
from tests.actors.test_blobs import Shelf

pytestmark = pytest.mark.anyio


class ResultsOnly:
    """A gateway of which only the large results are used."""

    def __init__(self, blobs: Blobs, record_bytes_max: int) -> None:
        self.blobs = blobs
        self.settings = Settings(record_bytes_max=record_bytes_max)


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


async def test_large_results_are_shown_whole_up_to_the_records_bound() -> None:
    blobs = Blobs(Shelf(), cache_bytes_max=0)
    refs = [await blobs.put(orjson.dumps({"text": letter * 100})) for letter in "ab"]
    rows = [node(result_json="{}"), *(node(result_ref=ref.to_json()) for ref in refs)]
    gateway = cast(Gateway, ResultsOnly(blobs, refs[0].size))
    await Gateway.load_results(gateway, StoredWorkflow({}, rows))
    shown = [orjson.loads(orjson.dumps(node_state(row))) for row in rows]
    assert shown[0]["result"] == {}
    assert shown[1]["result"] == {"text": "a" * 100}
    assert "result" not in shown[2]
    assert BlobRef.from_json(shown[2]["resultRef"]) == refs[1]


def test_node_without_a_result_has_neither() -> None:
    assert not {"result", "resultRef"} & node_state(node()).keys()
