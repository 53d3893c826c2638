"""What of an agent's stake is at risk with an attempt: locked as it begins, freed as it ends.

Whether the stake is there, and what of it is lost, the ledger decides; here stands that every lock
is freed exactly once. Verifiers put up no stake. Spec: Settlement rules 8; money.md cases 26 to 29.
"""

from __future__ import annotations

from core.workflow.actions import Decision
from core.workflow.events import StakeFreed, StakeLocked
from core.workflow.node_state import NodeState


def lock_stake(state: NodeState, micro: int, decision: Decision) -> None:
    """Put a part of the stake at risk with the attempt that has just begun.

    Args:
        micro: micro-credits, 0 or more.
    """
    assert state.stake_micro == 0, state
    assert state.agent_did is not None, state
    if micro:
        state.stake_micro = micro
        name = state.compiled.name
        decision.records.append(StakeLocked(name, state.attempt, state.agent_did, micro))


def free_stake(state: NodeState, decision: Decision, *, is_forged: bool = False) -> None:
    """End the lock of the open attempt, if it has one.

    Args:
        is_forged: the attempt ended with a wrong signature.
    """
    if state.stake_micro:
        assert state.agent_did is not None, state
        decision.records.append(
            StakeFreed(
                state.compiled.name, state.attempt, state.agent_did, state.stake_micro, is_forged
            )
        )
        state.stake_micro = 0
