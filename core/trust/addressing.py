"""Checks the recipient and the age of a dispatch, against replay.

A signature does not prove the time. If several agents share the secret, it does not prove the
recipient either. So the signed body contains the recipient and the time. An agent that checks them
accepts no dispatch to another agent and no old dispatch. Pure.
Reference: features.md (Dispatch signatures). Decision permissions-and-keys.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from core.timestamps import unix_ms

AGE_MS_MAX: Final = 300_000

WRONG_AGENT: Final = "WRONG_AGENT"
STALE_TIMESTAMP: Final = "STALE_TIMESTAMP"


def addressing_problem(
    own_did: str, agent_did: str | None, timestamp: str | None, *, now_ms: int
) -> str | None:
    """Return why an agent must refuse a dispatch; None if it may accept the dispatch.

    Args:
        own_did: the DID of the receiving agent.
        agent_did: the agent that the body names; None if it names none.
        timestamp: the time in the body, ISO 8601 with an offset; None if the body has no time.
        now_ms: the agent's wall clock, Unix milliseconds.

    A body without the two members is accepted, because a sender may follow the specification alone.
    Callboard signs only bodies with both members, so they cannot be removed from a signed body.
    """
    if agent_did is not None and agent_did != own_did:
        return WRONG_AGENT
    if timestamp is None:
        return None
    written_ms = _unix_ms(timestamp)
    if written_ms is None or abs(now_ms - written_ms) > AGE_MS_MAX:
        return STALE_TIMESTAMP
    return None


def _unix_ms(timestamp: str) -> int | None:
    try:
        written = datetime.fromisoformat(timestamp)
        if written.tzinfo is None:
            return None
        return unix_ms(written)
    except (ValueError, OverflowError):
        return None
