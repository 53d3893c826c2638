"""What of a task's rows a settlement ends, as they are read. Decision http-edge."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from core.errors import ErrorCode, ServiceError
from ledger.reads.stored import StoredWorkflow
from serve_app.operations.work.tasks import find_accepted

TOKENS = '{"inputRate": "0.1", "outputRate": "0.1"}'


def rows(*statuses: str, nodes: int = 1, price_json: str | None = None) -> StoredWorkflow:
    """Return a workflow that runs by its own row, with rows of its nodes."""
    manifest = {"nodes": {f"n{at}": {"capabilityId": "cap.x.v1"} for at in range(nodes)}}
    stored: list[dict[str, Any]] = [
        {"name": f"n{at}", "status": status, "price_json": price_json, "metrics": None}
        for at, status in enumerate(statuses)
    ]
    return StoredWorkflow({"status": "running", "manifest": orjson.dumps(manifest)}, stored)


@pytest.mark.parametrize("status", ["success", "failed", "timeout", "skipped"])
def test_a_node_that_has_ended_is_read_again_with_its_workflow(status: str) -> None:
    """A second settlement was a conflict now and then: the node's row was ahead."""
    assert find_accepted(rows(status), is_amount_named=False) is None


def test_a_node_that_was_accepted_is_ended() -> None:
    stored = rows("running")
    assert find_accepted(stored, is_amount_named=False) is stored.nodes[0]
    by_token = rows("running", price_json=TOKENS)
    assert find_accepted(by_token, is_amount_named=True) is by_token.nodes[0]
    with pytest.raises(ServiceError) as refused:
        find_accepted(by_token, is_amount_named=False)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_an_agent_whose_result_is_verified_has_named_its_tokens() -> None:
    """Its payer was told that it had named none, instead of the conflict."""
    verified = rows("running", price_json=TOKENS)
    verified.nodes[0]["metrics"] = {"output_tokens": 10}
    assert find_accepted(verified, is_amount_named=False) is verified.nodes[0]


@pytest.mark.parametrize(
    "stored",
    [rows(), rows("ready"), rows("dispatched"), rows("success", nodes=2), rows("running", nodes=2)],
    ids=["pending", "ready", "open request", "two nodes", "one of two accepted"],
)
def test_of_others_nothing_was_accepted(stored: StoredWorkflow) -> None:
    with pytest.raises(ServiceError) as refused:
        find_accepted(stored, is_amount_named=True)
    assert refused.value.code is ErrorCode.CONFLICT
