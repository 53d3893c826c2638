"""Locked stakes and slashes: the stake to lock with an attempt, and the causes and amounts of
slashes.

A slash moves stake from the agent's locked stake to the payer, without a fee. All depositors of the
stake bear the slash in proportion to their shares. The proportions change only with a deposit or a
withdrawal, so the shares are computed only then. This module knows no accounts.
Reference: money.md (Slashing, Stakes). Decision reputation-and-ranking.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from core.errors import NodeErrorCode

BPS: Final = 10_000

# Failures for which an agent is responsible if the dispatch has reached it.
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
    """The causes of a slash."""

    NODE_FAILED = "node_failed"
    WRONG_SIGNATURE = "wrong_signature"
    FRAUD_DISPUTE = "fraud_dispute"
    ADMIN = "admin"


def is_agents_failure(code: NodeErrorCode, *, is_spared: bool = False) -> bool:
    """Return whether a node's last agent is responsible for the node's final failure.

    Such a failure costs the agent stake and reputation.

    Args:
        code: the code of the node's final error.
        is_spared: whether the last attempt failed without the agent's fault: by HTTP 429, a broken
            connection, or the end of the dispatching process. The code alone cannot distinguish
            these failures from an error of the agent.

    Reference: money.md (Slashing).
    """
    return code in _AGENTS_FAILURES and not is_spared


def slash_bps(trigger: SlashTrigger, *, failure_bps: int, fraud_bps: int) -> int:
    """Return the share of the locked stake that is slashed, basis points.

    Args:
        trigger: the cause of the slash.
        failure_bps: the share for a failed node.
        fraud_bps: the share for every other cause.
    """
    return failure_bps if trigger is SlashTrigger.NODE_FAILED else fraud_bps


def slash_micro(locked_micro: int, bps: int) -> int:
    """Return the amount of a slash, micro-credits, rounded down.

    Only the stake that is locked with the attempt is slashed; the free stake and the stake locked
    for other nodes are not. With an amount of 0, only the event is recorded.

    Args:
        locked_micro: the stake locked with the attempt, micro-credits, 0 or more.
        bps: the share to slash, basis points, 0 to 10,000.

    Reference: money.md (Slashing).
    """
    assert locked_micro >= 0, locked_micro
    assert 0 <= bps <= BPS, bps
    return locked_micro * bps // BPS


def lock_micro(required_micro: int, *, offered_micro: int, free_micro: int) -> int | None:
    """Return the stake to lock with an attempt, None if the agent's stake is too small.

    Args:
        required_micro: the stake that the node requires of this agent, micro-credits.
        offered_micro: the stake that the agent offers, micro-credits; without an auction, its whole
            free stake.
        free_micro: the agent's free stake, micro-credits.

    Reference: money.md (Stakes).
    """
    return required_micro if required_micro <= min(offered_micro, free_micro) else None


def settle_shares(shares: Mapping[str, int], total_micro: int) -> dict[str, int]:
    """Return each depositor's current share of a stake, micro-credits; they add up to the stake.

    Shares are rounded down. The remaining micro-credits are added one by one, beginning with the
    largest share; equal shares are ordered by their depositors' DIDs.

    Args:
        shares: the shares when they were last computed, micro-credits by depositor.
        total_micro: the whole current stake, including the locked part, micro-credits; at most the
            sum of `shares`.
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
