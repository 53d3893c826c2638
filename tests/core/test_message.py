"""What travels arrives equal, and refuses what it refused before."""

from __future__ import annotations

import copy
import pickle

import pytest
from msgspec.structs import replace

from core.errors import NodeErrorCode
from core.records.manifest import parse_manifest
from core.workflow.dag import compile_workflow
from core.workflow.events import AttemptFinished, Failure, NodeChanged, NodePaid, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.workflow_commands import AdvanceWorkflow

CHANGED = NodeChanged("a", NodeStatus.RUNNING, 1, "did:x:a", metrics={"latency_ms": 1})
MANIFEST = {
    "nodes": {
        "a": {"capabilityId": "cap.x"},
        "b": {"capabilityId": "cap.x", "dependsOn": ["a"], "inputMappings": {"t": "$.a.result.t"}},
    }
}
RECORDS = [
    CHANGED,
    AttemptFinished("a", 1, "did:x:a", "success", 1, 2),
    NodePaid("a", "did:x:a", 5),
    WorkflowChanged(WorkflowStatus.RUNNING, 3),
    Failure(NodeErrorCode.AGENT_ERROR, "it failed"),
    Outcome(OutcomeStatus.APPLIED, {"n": 1}),
    AdvanceWorkflow(
        key="k", member="o", shard_epoch=1, workflow_id="w", actor_did="d", records=(CHANGED,)
    ),
    compile_workflow(parse_manifest(MANIFEST)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_it_arrives_equal(record: object) -> None:
    arrived = pickle.loads(pickle.dumps(record))
    assert arrived == record
    assert type(arrived) is type(record)
    assert copy.deepcopy(record) == record


def test_what_arrived_is_as_frozen_as_what_was_sent() -> None:
    arrived = pickle.loads(pickle.dumps(CHANGED))
    with pytest.raises(AttributeError):
        arrived.attempt = 2
    assert replace(arrived, attempt=2).attempt == 2
