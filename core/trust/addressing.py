"""The check of a dispatch's recipient and age, against replay.

A signature under a secret that several agents share proves neither the recipient nor the time. So
the signed body names both, and an agent that checks them accepts neither another agent's dispatch
nor an old one of its own. Pure. Reference: features.md (Dispatch signatures). Decision
permissions-and-keys.
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
    """Return why an agent must refuse a dispatch, None when it is accepted.

    Args:
        own_did: the receiving agent.
        agent_did: the agent named in the body, None without one.
        timestamp: the time in the body, ISO 8601 with an offset, None without one.
        now_ms: the agent's wall clock, Unix milliseconds.

    A body without both members is accepted: coordinators sign only bodies with both, so an agent
    cannot forge one without, and senders of the specification's own form still work.
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
