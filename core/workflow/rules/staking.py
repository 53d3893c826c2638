"""What of an agent's stake is at risk with an attempt: locked as it begins, freed as it ends.

Here stands that every lock is freed exactly once, and whether the agent is to blame for the end of
its attempt; whether the stake is there, and how much of it is lost, the ledger decides. Verifiers
put up no stake. Spec: Settlement rules 8; money.md cases 26 to 29; contract.md section 6 (Slash
triggers). Decision 0095.
"""

from __future__ import annotations

from core.errors import NodeErrorCode
from core.market.slashing import is_agents_failure
from core.workflow.actions import Decision
from core.workflow.events import Failure, StakeFreed, StakeLocked, Verdict
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


def free_stake(
    state: NodeState,
    decision: Decision,
    failure: Failure | None = None,
    *,
    is_given_up: bool = False,
) -> None:
    """End the lock of the open attempt, if it has one.

    Args:
        failure: how the attempt failed; None when it succeeded or was aborted.
        is_given_up: after this failure the agent gets no further attempt at the node, whether
            another agent, another auction round or the node's end follows.
    """
    if state.stake_micro:
        assert state.agent_did is not None, state
        decision.records.append(
            StakeFreed(
                state.compiled.name,
                state.attempt,
                state.agent_did,
                state.stake_micro,
                failure is not None and failure.is_forged,
                _agent_failure_code(failure) if failure is not None and is_given_up else None,
            )
        )
        state.stake_micro = 0


def _agent_failure_code(failure: Failure) -> NodeErrorCode | None:
    """Return the code of a failure that is the agent's own, None for any other."""
    # The end of the dispatching process is reported with an agent's code, but is not its failure.
    is_spared = failure.is_spared or failure.verdict is Verdict.LOST
    return failure.code if is_agents_failure(failure.code, is_spared=is_spared) else None
