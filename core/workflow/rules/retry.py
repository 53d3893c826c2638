"""The delays of retries, and whether another agent may take a node.

Reference: features.md (Retries, Targeted routing).
"""

from __future__ import annotations

from typing import Final

BACKOFF_MS: Final = (0, 1_000, 5_000, 30_000)
RETRY_AFTER_MS_MAX: Final = 30_000
AGENTS_PER_NODE_MAX: Final = 3
# A refusal of the inputs costs an agent nothing, and an agent card costs nothing. With a limit of
# 3, three agents that refuse all inputs could fail a node that a fourth agent would execute. The
# same is true of bidders that win and then decline the work.
AGENTS_REFUSING_MAX: Final = 8
# After this many attempts or verifications, a node does not change its agent after a decline.
MOVES_MAX: Final = 64


def delay_ms(attempt: int, retry_after_ms: int = 0) -> int:
    """Return the delay before the n-th attempt: 0, 1, 5, then 30 s each.

    Args:
        attempt: n ≥ 1. Only retries count, not attempts by another agent or after a lost process.
        retry_after_ms: the agent's `Retry-After`; it can lengthen the delay up to 30 s.
    """
    assert attempt >= 1, attempt
    asked_ms = min(max(retry_after_ms, 0), RETRY_AFTER_MS_MAX)
    return max(BACKOFF_MS[min(attempt, len(BACKOFF_MS)) - 1], asked_ms)


def may_change_agent(
    tried: int,
    *,
    allow_fallback_agents: bool,
    is_targeted: bool,
    allow_broadcast_fallback: bool,
    is_refused: bool = False,
) -> bool:
    """Say whether another agent may take a node for which `tried` agents are given up.

    The limit is three agents. It is eight if `is_refused`: the last agent has refused the inputs by
    its schema, or has won an auction and cannot be used.

    Another agent may replace a target only with `allowBroadcastFallback`. If the workflow sets
    `allowFallbackAgents: false` as well, the limit is two agents: the target and one more.
    Reference: features.md (Targeted routing).
    """
    most = AGENTS_REFUSING_MAX if is_refused else AGENTS_PER_NODE_MAX
    if is_targeted:
        if not allow_broadcast_fallback:
            return False
        return tried < (most if allow_fallback_agents else 2)
    return allow_fallback_agents and tried < most
