"""Stakes at risk: how much is locked with an attempt, what loses a part of it, and how much.

Knows no accounts; the amounts move from the agent's locked stake to the payer, without a fee.
Spec: Settlement rules 8; contract.md section 6 (Slash triggers); money.md cases 26 to 29.
Decision 0062.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from core.errors import NodeErrorCode

BPS: Final = 10_000

# What an agent can be blamed for, given that it was reached and asked to work.
_AGENTS_FAILURES: Final = frozenset(
    {
        NodeErrorCode.AGENT_ERROR,
        NodeErrorCode.AGENT_TIMEOUT,
        NodeErrorCode.INVALID_REPLY,
        NodeErrorCode.RESULT_TOO_LARGE,
        NodeErrorCode.OUTPUT_SCHEMA,
        NodeErrorCode.VERIFICATION_REJECTED,
    }
)


class SlashTrigger(StrEnum):
    """What costs an agent stake. Closed."""

    NODE_FAILED = "node_failed"
    WRONG_SIGNATURE = "wrong_signature"
    FRAUD_DISPUTE = "fraud_dispute"
    ADMIN = "admin"


def is_agents_failure(code: NodeErrorCode, *, is_spared: bool = False) -> bool:
    """Say whether a node's final failure is its last agent's: it loses stake and reputation.

    Args:
        code: of the node's final error.
        is_spared: the last attempt failed although the agent did no wrong: it answered HTTP 429,
            its connection could not be kept, or the dispatching process ended. The code alone does
            not tell these from an agent's own error.

    contract.md section 6 (Slash triggers); money.md case 29.
    """
    return code in _AGENTS_FAILURES and not is_spared


def slash_bps(trigger: SlashTrigger, *, failure_bps: int, fraud_bps: int) -> int:
    """Return the share of the locked stake that a trigger costs, basis points."""
    return failure_bps if trigger is SlashTrigger.NODE_FAILED else fraud_bps


def slash_micro(locked_micro: int, bps: int) -> int:
    """Return what is taken of the stake locked for this node, rounded down.

    Never more than that stake: free stake and other nodes' are not touched. 0: an event only.

    Args:
        locked_micro: locked for this attempt of this node, micro-credits, 0 or more.
        bps: basis points, 0 to 10,000.

    money.md case 27.
    """
    assert locked_micro >= 0, locked_micro
    assert 0 <= bps <= BPS, bps
    return locked_micro * bps // BPS


def lock_micro(required_micro: int, *, offered_micro: int, free_micro: int) -> int | None:
    """Return what is locked with an attempt, or None: the agent puts up too little for it.

    Args:
        required_micro: what the node asks of this agent, micro-credits.
        offered_micro: what it is ready to risk; without an auction its whole free stake.
        free_micro: its free stake now.

    money.md case 26.
    """
    return required_micro if required_micro <= min(offered_micro, free_micro) else None
