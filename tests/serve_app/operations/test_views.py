"""Records of rows, as they are declared; a node's large result shown whole or by reference."""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated, Any, cast

import pytest

from actors.dispatch.large_results import Blobs
from actors.gateway.workflow_reads import WorkflowReads
from core.canonical import hash_bytes
from core.json_text import read_json, write_json
from core.market.ranking import Candidate, Choice, RankingRules
from core.records.api.kinds import Credits, Timestamp, Uuid
from core.records.api.record import Record
from core.records.api.shape import Maybe, MaybeNull, Named
from core.settings import KIB, Settings
from ledger.reads.reader import LedgerReader, StoredWorkflow
from serve_app.operations.views import node_state, shown, workflow_record
from tests.actors.dispatch.test_large_results import Shelf


class Declared(Record):
    """One of everything."""

    id: Uuid
    owner_did: str
    latency_ms: Annotated[float, Named("latency_ms")]
    created_at: Timestamp
    period_start: Timestamp | None
    held_credits: Credits
    remaining: Credits | None
    node_id: Maybe[str]
    comment: MaybeNull[str]


ROW: dict[str, Any] = {
    "id": uuid.UUID(int=7),
    "owner_did": "did:net:a",
    "latency_ms": 1.5,
    "created_ms": 1_000,
    "period_start_ms": None,
    "held_micro": 2_500_000,
    "remaining_micro": None,
    "node_id": None,
    "comment": None,
    "stored": "and not shown",
}
SHOWN: dict[str, Any] = {
    "id": str(uuid.UUID(int=7)),
    "ownerDid": "did:net:a",
    "latency_ms": 1.5,
    "createdAt": "1970-01-01T00:00:01.000Z",
    "periodStart": None,
    "heldCredits": 2.5,
    "remaining": None,
    "comment": None,
}


def test_a_row_is_shown_as_it_is_declared() -> None:
    assert shown(Declared, ROW) == SHOWN
    assert shown(Declared, {**ROW, "node_id": "a"}) == {**SHOWN, "nodeId": "a"}


def test_what_a_row_does_not_have_is_given() -> None:
    row = {name: value for name, value in ROW.items() if name != "held_micro"}
    assert shown(Declared, row, held_credits=1, owner_did=None) == {
        **SHOWN,
        "heldCredits": 1,
        "ownerDid": None,
    }
    with pytest.raises(KeyError, match="held_micro"):
        shown(Declared, row)


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


async def shown_nodes(
    rows: list[dict[str, Any]], blobs: Blobs, bytes_max: int
) -> list[dict[str, Any]]:
    """Return nodes as a record of a bounded size shows them."""
    reads = WorkflowReads(Settings(), cast(LedgerReader, None), blobs, record_bytes_max=bytes_max)
    await reads.load_results(StoredWorkflow({"manifest": "{}", "intent": ""}, rows))
    return [read_json(write_json(node_state(row))) for row in rows]


async def test_large_results_are_shown_whole_up_to_the_records_bound() -> None:
    blobs = Blobs(Shelf(), cache_bytes_max=0)
    refs = [await blobs.put(write_json({"text": letter * 40 * KIB})) for letter in "ab"]
    rows = [node(result_json="{}"), *(node(result_ref=ref.to_json()) for ref in refs)]
    nodes = await shown_nodes(rows, blobs, 64 * KIB)
    assert nodes[0]["result"] == {}
    assert nodes[1]["result"] == {"text": "a" * 40 * KIB}
    assert "result" not in nodes[2]
    assert nodes[2]["resultRef"] == {"sha256": refs[1].hash, "size": refs[1].size}


async def test_reasons_are_computed_for_the_record_and_count_as_they_are_shown() -> None:
    field = [Candidate(f"did:x:{number}", 10_000, 0, 32, number) for number in range(10)]
    choice = Choice(field, [], 10_000, RankingRules())
    rows = [node(name=str(number), selection_json=choice.to_text()) for number in range(40)]
    nodes = await shown_nodes(rows, Blobs(Shelf(), cache_bytes_max=0), 64 * KIB)
    assert nodes[0]["selection"] == choice.to_json()
    shown = sum("selection" in one for one in nodes)
    assert 0 < shown < 40
    assert sum(len(row["selection_json"] or "") for row in rows) > shown * len(choice.to_text())
    assert len(write_json(nodes)) <= 64 * KIB


async def test_the_reasons_of_many_nodes_are_computed_in_slices() -> None:
    """Those of 1,000 nodes with ten candidates each were one turn of the loop, of 60 ms."""
    field = [Candidate(f"did:x:{number}", 10_000, 0, 32, number) for number in range(10)]
    text = Choice(field, [], 10_000, RankingRules()).to_text()
    rows = [node(name=str(number), selection_json=text) for number in range(1_000)]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await shown_nodes(rows, Blobs(Shelf(), cache_bytes_max=0), 4 * KIB * KIB)
    counting.cancel()
    assert turns > 3


async def test_a_record_of_many_inline_results_stays_within_its_bound() -> None:
    text = write_json({"text": "ä" * 5 * KIB}).decode()
    rows = [node(result_json=text, metrics={"a": "m" * KIB}) for _ in range(100)]
    nodes = await shown_nodes(rows, Blobs(Shelf(), cache_bytes_max=0), 256 * KIB)
    assert 0 < sum("result" in one for one in nodes) < 100
    assert len(write_json(nodes)) <= 256 * KIB
    assert nodes[-1]["resultRef"] == {
        "sha256": hash_bytes(text.encode()),
        "size": len(text.encode()),
    }


def test_node_without_a_result_has_neither() -> None:
    assert not {"result", "resultRef"} & node_state(node()).keys()


def test_a_record_is_made_without_the_payloads_of_its_manifest() -> None:
    """Reads of 483 KiB of empty lists made another tenant's read wait for half a second."""
    nulls = (
        "intent",
        "error",
        "started_ms",
        "completed_ms",
        "quarantined_ms",
        "traceparent",
        "template_id",
    )
    row = dict.fromkeys(nulls)
    row |= {"id": uuid.UUID(int=7), "task_id": uuid.UUID(int=8), "status": "running"}
    row |= {"payer_did": "did:test:p", "created_ms": 1, "spent_micro": 0}
    # JSON to a scan that only looks where a value ends, and to no parser that builds it.
    payload = '"payload":{"x":1e999}'
    row["manifest"] = f'{{"nodes":{{"a":{{{payload}}},"b":{{"dependsOn":["a"],{payload}}}}}}}'
    record = workflow_record(StoredWorkflow(row))
    assert record["nodes"] == {
        "a": {"status": "pending"},
        "b": {"status": "pending", "dependsOn": ["a"]},
    }
