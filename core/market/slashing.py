"""Stakes at risk: the amount locked with an attempt, the triggers of a slash, and its amount.

Knows no accounts; a slash moves from the agent's locked stake to the payer, without a fee. All
depositors of a stake bear a slash in proportion. The proportions are constant between two deposits
or withdrawals, so their shares are settled only then.
Reference: money.md (Slashing, Stakes). Decision reputation-and-ranking.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from core.errors import NodeErrorCode

BPS: Final = 10_000

# Failures that an agent is responsible for, once it was reached.
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
    """The reasons of a slash. Closed."""

    NODE_FAILED = "node_failed"
    WRONG_SIGNATURE = "wrong_signature"
    FRAUD_DISPUTE = "fraud_dispute"
    ADMIN = "admin"


def is_agents_failure(code: NodeErrorCode, *, is_spared: bool = False) -> bool:
    """Say whether a node's last agent is responsible for its final failure.

    Such a failure costs the agent stake and reputation.

    Args:
        code: of the node's final error.
        is_spared: the last attempt failed without the agent's fault: HTTP 429, a broken connection,
            or the end of the dispatching process. The code alone does not tell these from an
            agent's own error.

    money.md (Slashing).
    """
    return code in _AGENTS_FAILURES and not is_spared


def slash_bps(trigger: SlashTrigger, *, failure_bps: int, fraud_bps: int) -> int:
    """Return the share of the locked stake that a trigger costs, basis points."""
    return failure_bps if trigger is SlashTrigger.NODE_FAILED else fraud_bps


def slash_micro(locked_micro: int, bps: int) -> int:
    """Return the slash of the stake locked for this node, rounded down.

    It is at most that stake; free stake and other nodes' stakes are not touched. 0: an event only.

    Args:
        locked_micro: locked for this attempt of this node, micro-credits, 0 or more.
        bps: basis points, 0 to 10,000.

    money.md (Slashing).
    """
    assert locked_micro >= 0, locked_micro
    assert 0 <= bps <= BPS, bps
    return locked_micro * bps // BPS


def lock_micro(required_micro: int, *, offered_micro: int, free_micro: int) -> int | None:
    """Return the stake locked with an attempt, or None when the agent's is too small.

    Args:
        required_micro: the stake the node requires of this agent, micro-credits.
        offered_micro: the stake the agent offers; without an auction its whole free stake.
        free_micro: its free stake now.

    money.md (Stakes).
    """
    return required_micro if required_micro <= min(offered_micro, free_micro) else None


def settle_shares(shares: Mapping[str, int], total_micro: int) -> dict[str, int]:
    """Return each depositor's current share, micro-credits; their sum is the stake.

    Args:
        shares: by depositor, as last settled, micro-credits.
        total_micro: the whole stake now, its locked part included; at most the sum of `shares`.

    Rounded down; the remaining micro-credits go one by one to the largest shares, equal ones in the
    order of their depositors.
    """
    before_micro = sum(shares.values())
    assert 0 <= total_micro <= before_micro, (total_micro, before_micro)
    if total_micro == before_micro:
        return dict(shares)
    settled = {did: micro * total_micro // before_micro for did, micro in shares.items()}
    rest_micro = total_micro - sum(settled.values())
    for did in sorted(shares, key=lambda did: (-shares[did], did))[:rest_micro]:
        settled[did] += 1
    return settled
