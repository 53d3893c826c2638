"""What counts for an agent. Spec: Settlement rules 9; money.md case 41."""

from __future__ import annotations

import pytest

from core.errors import NodeErrorCode
from core.market.reputation import Outcome
from core.workflow.node_outcome import outcome_of
from core.workflow.transitions import NodeStatus

FAILED = {
    NodeErrorCode.AGENT_ERROR, NodeErrorCode.AGENT_TIMEOUT, NodeErrorCode.INVALID_REPLY,
    NodeErrorCode.RESULT_TOO_LARGE, NodeErrorCode.OUTPUT_SCHEMA,
    NodeErrorCode.VERIFICATION_REJECTED,
}  # fmt: skip
CANCELLED = {NodeErrorCode.CANCELLED, NodeErrorCode.WORKFLOW_TIMEOUT}


@pytest.mark.parametrize("code", NodeErrorCode)
@pytest.mark.parametrize("was_at_work", [True, False])
@pytest.mark.parametrize("is_spared", [True, False])
def test_each_final_error_counts_as_the_rule_says(
    code: NodeErrorCode, was_at_work: bool, is_spared: bool
) -> None:
    expected = None
    if code in FAILED and not is_spared:
        expected = Outcome.FAILED
    elif code in CANCELLED and was_at_work:
        expected = Outcome.CANCELLED
    found = outcome_of(NodeStatus.FAILED, str(code), was_at_work=was_at_work, is_spared=is_spared)
    assert found is expected


def test_a_success_counts_and_a_node_that_never_began_does_not() -> None:
    assert outcome_of(NodeStatus.SUCCESS, None, was_at_work=True) is Outcome.SUCCESSFUL
    assert outcome_of(NodeStatus.SKIPPED, None, was_at_work=False) is None
