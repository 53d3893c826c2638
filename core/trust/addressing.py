"""Whether a dispatch is meant for this agent, and for now.

A signature says who sent a body; under a secret that several agents share it does not say to
whom, nor when. So the signed body names both, and an agent that checks them cannot be handed what
another agent was sent, or what it was sent long ago itself. Pure. Spec: Authentication 3;
contract.md section 3. Decision 0099.
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
    """Return why a dispatch must be refused, None when it need not be.

    Args:
        own_did: of the agent that has received it.
        agent_did: the agent that it names, None when it names none.
        timestamp: when it was written, ISO 8601 with an offset, None when it does not say.
        now_ms: the agent's wall clock, Unix milliseconds.

    A body without them is not refused: coordinators sign only bodies with both, so no agent can
    make one without, and senders of the specification's own form still work.
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
