"""When a failed attempt is repeated, and by whom.

Spec: Limits (retry backoff sequence), Targeted routing; contract.md section 5 (attempts).
"""

from __future__ import annotations

from typing import Final

BACKOFF_MS: Final = (0, 1_000, 5_000, 30_000)
RETRY_AFTER_MS_MAX: Final = 30_000
AGENTS_PER_NODE_MAX: Final = 3


def delay_ms(attempt: int, retry_after_ms: int = 0) -> int:
    """Return the delay before the n-th attempt: 0, 1, 5, then 30 s each.

    Args:
        attempt: n ≥ 1; attempts that do not count as retries (another agent, a lost process) do
            not count here either.
        retry_after_ms: what the agent asked for; lengthens up to 30 s, never shortens.
    """
    assert attempt >= 1, attempt
    asked_ms = min(max(retry_after_ms, 0), RETRY_AFTER_MS_MAX)
    return max(BACKOFF_MS[min(attempt, len(BACKOFF_MS)) - 1], asked_ms)


def may_change_agent(
    tried: int, *, allow_fallback_agents: bool, is_targeted: bool, allow_broadcast_fallback: bool
) -> bool:
    """Say whether another agent may take a node that `tried` agents have failed finally.

    A targeted node leaves its target only with `allowBroadcastFallback`; that fallback is asked for
    by the node itself and stands above the workflow's `allowFallbackAgents: false`, which then ends
    at the second agent. Spec: Targeted routing.
    """
    if is_targeted:
        if not allow_broadcast_fallback:
            return False
        return tried < (AGENTS_PER_NODE_MAX if allow_fallback_agents else 2)
    return allow_fallback_agents and tried < AGENTS_PER_NODE_MAX
