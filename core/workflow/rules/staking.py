"""Locks a part of an agent's stake at the start of an attempt and frees it at the end.

These rules free every lock exactly once. They decide whether the agent is to blame for the end of
the attempt. The ledger decides whether the stake suffices and how much is slashed. Verifiers lock
no stake. Reference: money.md (Slashing, Stakes). Decision stakes-and-slashing.
"""

from __future__ import annotations

from core.errors import NodeErrorCode
from core.market.slashing import is_agents_failure
from core.workflow.events import Failure, StakeLocked, StakeUnlocked, Verdict
from core.workflow.workflow_state import NodeState, WorkflowState


def lock_stake(workflow: WorkflowState, state: NodeState, micro: int) -> None:
    """Lock a part of the agent's stake with the new attempt.

    Args:
        micro: the amount to lock in micro-credits, 0 or more.
    """
    assert state.stake_micro == 0, state
    assert state.agent_did is not None, state
    if micro:
        state.stake_micro = micro
        name = state.compiled.name
        workflow.record(StakeLocked(name, state.attempt, state.agent_did, micro))


def unlock_stake(
    workflow: WorkflowState,
    state: NodeState,
    failure: Failure | None = None,
    *,
    is_given_up: bool = False,
) -> None:
    """Free the stake that the open attempt locks, if any.

    Args:
        failure: the attempt's failure; None when it succeeded or was aborted.
        is_given_up: whether the agent gets no further attempt at the node after this failure.
    """
    if state.stake_micro:
        assert state.agent_did is not None, state
        workflow.record(
            StakeUnlocked(
                state.compiled.name,
                state.attempt,
                state.agent_did,
                state.stake_micro,
                failure is not None and failure.is_forged,
                _agent_failure_code(state, failure) if failure and is_given_up else None,
            )
        )
        state.stake_micro = 0


def _agent_failure_code(state: NodeState, failure: Failure) -> NodeErrorCode | None:
    """Return the code of a failure for which the agent is slashed; None for other failures."""
    # A refusal of the inputs costs no stake, because the payer chose the inputs and would receive
    # the slash. In an auction it costs stake, so that no bidder wins with a low bid and refuses.
    is_free_refusal = failure.is_refusal and not state.compiled.is_auction
    # A lost attempt has the code of an agent's error, but the agent is not to blame.
    is_spared = failure.is_spared or is_free_refusal or failure.verdict is Verdict.LOST
    return failure.code if is_agents_failure(failure.code, is_spared=is_spared) else None
